use crate::play::Play;
use schedulers::{Flags, Options};

const FALLBACK: Flags = Flags {
    fallback: true,
    port: false,
};
const PORT: Flags = Flags {
    fallback: false,
    port: true,
};

fn with(flags: Flags) -> Play {
    let options = Options {
        flags,
        ..Options::default()
    };
    Play::with("mh", &options)
}

#[test]
fn a_pick_depends_on_the_client_address() {
    Play::new("mh")
        .add("A=1 B=1 C=1")
        .clients("192.168.1.1>A 192.168.1.2>C 192.168.1.3>B 192.168.1.4>C");
}

#[test]
fn slots_are_shared_by_weight() {
    Play::new("mh")
        .add("A=1 B=2 C=3")
        .clients("192.168.1.1>C 192.168.1.2>C 192.168.1.3>C 192.168.1.4>C");
    Play::new("mh")
        .add("A=100 B=50 C=25")
        .clients("192.168.1.1>A 192.168.1.2>C 192.168.1.3>A 192.168.1.4>A");
}

#[test]
fn weight_0_moves_no_client_but_refuses_or_falls_back() {
    Play::new("mh")
        .add("A=1 B=1 C=1")
        .weigh("B=0")
        .clients("192.168.1.1>A 192.168.1.2>C 192.168.1.3>- 192.168.1.4>C");
    with(FALLBACK)
        .add("A=1 B=1 C=1")
        .weigh("B=0")
        .clients("192.168.1.3>A");
    with(FALLBACK)
        .add("A=0 B=0")
        .clients("192.168.1.1>- 192.168.1.2>-");
}

#[test]
fn with_the_port_flag_the_client_port_is_hashed() {
    with(PORT)
        .add("A=1 B=1 C=1")
        .from("192.168.1.1", 40_000)
        .picks("B")
        .from("192.168.1.1", 40_001)
        .picks("A")
        .from("192.168.1.1", 40_002)
        .picks("B")
        .from("192.168.1.1", 40_003)
        .picks("A");
}

#[test]
fn a_server_that_never_had_a_weight_gets_no_slot() {
    Play::new("mh").add("A=0 B=0").clients("192.168.1.1>-");
    Play::new("mh")
        .add("A=0 B=1")
        .clients("192.168.1.1>B 192.168.1.2>B 192.168.1.3>B");
}

#[test]
fn without_servers_there_is_no_pick() {
    Play::new("mh").clients("192.168.1.1>-");
    Play::new("mh")
        .add("A=1")
        .remove('A')
        .clients("192.168.1.1>-");
}
