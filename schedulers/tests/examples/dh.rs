use crate::play::Play;

#[test]
fn by_dialled_address_whatever_the_weights() {
    Play::new("dh")
        .add("A=5 B=1 C=1")
        .dials("10.0.0.1>C 10.0.0.2>A 192.168.1.1>B 192.168.1.10>A 203.0.113.7>B")
        .weigh("B=0")
        .dials("10.0.0.1>C 10.0.0.2>A 192.168.1.1>- 192.168.1.10>A 203.0.113.7>-")
        .remove('C')
        .dials("10.0.0.1>A 10.0.0.2>A 192.168.1.1>- 192.168.1.10>- 203.0.113.7>-");
}

#[test]
fn clients_do_not_matter() {
    Play::new("dh")
        .add("A=1 B=1")
        .clients("10.0.0.1>B 10.0.0.2>B 10.0.0.3>B 10.0.0.4>B");
}

#[test]
fn no_server_no_pick() {
    Play::new("dh").dials("10.0.0.1>-");
}
