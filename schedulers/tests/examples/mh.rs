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
fn by_address() {
    Play::new("mh")
        .add("A=1 B=1 C=1")
        .clients("192.168.1.1>A 192.168.1.2>C 192.168.1.3>B 192.168.1.4>C");
}

#[test]
fn weights_are_shares() {
    Play::new("mh")
        .add("A=1 B=2 C=3")
        .clients("192.168.1.1>C 192.168.1.2>C 192.168.1.3>C 192.168.1.4>C");
    Play::new("mh")
        .add("A=100 B=50 C=25")
        .clients("192.168.1.1>A 192.168.1.2>C 192.168.1.3>A 192.168.1.4>A");
}

#[test]
fn weight_0_moves_nobody_and_refuses_or_falls_back() {
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
fn ports_take_part_with_the_flag() {
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
fn servers_without_a_weight_from_the_beginning_get_no_slot() {
    Play::new("mh").add("A=0 B=0").clients("192.168.1.1>-");
    Play::new("mh")
        .add("A=0 B=1")
        .clients("192.168.1.1>B 192.168.1.2>B 192.168.1.3>B");
}

#[test]
fn no_server_no_pick() {
    Play::new("mh").clients("192.168.1.1>-");
    Play::new("mh")
        .add("A=1")
        .remove('A')
        .clients("192.168.1.1>-");
}
