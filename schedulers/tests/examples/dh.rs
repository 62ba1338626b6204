use crate::play::Play;

#[test]
fn a_pick_depends_on_the_frontend_address_only() {
    Play::new("dh")
        .add("A=5 B=1 C=1")
        .frontends("10.0.0.1>C 10.0.0.2>A 192.168.1.1>B 192.168.1.10>A 203.0.113.7>B")
        .weigh("B=0")
        .frontends("10.0.0.1>C 10.0.0.2>A 192.168.1.1>- 192.168.1.10>A 203.0.113.7>-")
        .remove('C')
        .frontends("10.0.0.1>A 10.0.0.2>A 192.168.1.1>- 192.168.1.10>- 203.0.113.7>-");
}

#[test]
fn the_client_does_not_matter() {
    Play::new("dh")
        .add("A=1 B=1")
        .clients("10.0.0.1>B 10.0.0.2>B 10.0.0.3>B 10.0.0.4>B");
}

#[test]
fn without_servers_there_is_no_pick() {
    Play::new("dh").frontends("10.0.0.1>-");
}
