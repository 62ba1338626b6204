use crate::play::Play;
use schedulers::{Family, Flags, Options};

fn with(fallback: bool, port: bool) -> Play {
    let options = Options {
        flags: Flags { fallback, port },
        ..Options::default()
    };
    Play::with("sh", &options)
}

#[test]
fn a_pick_depends_on_the_client_address() {
    Play::new("sh")
        .add("A=1 B=1 C=1")
        .clients("10.0.0.1>C 10.0.0.2>A 192.168.1.1>B 192.168.1.10>A");
}

#[test]
fn a_weight_is_a_number_of_slots_and_weight_0_has_one_that_refuses() {
    Play::new("sh")
        .add("A=3 B=0 C=2")
        .clients("10.0.0.1>A 10.0.0.3>C 192.168.1.10>-");
}

#[test]
fn fallback_starts_at_twice_the_hash() {
    with(true, false)
        .add("A=3 B=0 C=2")
        .clients("10.0.0.1>A 10.0.0.3>C 192.168.1.10>C");
    with(true, false).add("A=0 B=0").clients("10.0.0.1>-");
}

#[test]
fn the_client_port_is_hashed_with_the_port_flag_only() {
    with(false, true)
        .add("A=1 B=1 C=1")
        .from("10.0.0.1", 40_000)
        .picks("A")
        .from("10.0.0.1", 40_001)
        .picks("C")
        .from("10.0.0.1", 40_002)
        .picks("A")
        .from("10.0.0.1", 40_003)
        .picks("B");
    Play::new("sh")
        .add("A=1 B=1 C=1")
        .from("10.0.0.1", 40_000)
        .picks("C")
        .from("10.0.0.1", 40_003)
        .picks("C");
}

#[test]
fn a_weight_above_the_table_size_leaves_no_slot_for_older_servers() {
    Play::new("sh")
        .add("A=1 B=300")
        .clients("10.0.0.1>B 10.0.0.2>B 192.168.1.1>B 192.168.1.10>B 127.0.0.1>B");
}

#[test]
fn a_removal_moves_clients_of_other_servers() {
    Play::new("sh")
        .add("A=1 B=1 C=1")
        .remove('B')
        .clients("10.0.0.1>A 10.0.0.2>A 192.168.1.1>C 192.168.1.10>C");
}

#[test]
fn without_servers_there_is_no_pick() {
    Play::new("sh").clients("10.0.0.1>-");
    Play::new("sh").add("A=1").remove('A').clients("10.0.0.1>-");
}

/// The clients hash to slots 63, 124 and 140 of the table C B A C B A ...
#[test]
fn ipv6_addresses_are_folded() {
    let options = Options {
        family: Family::V6,
        ..Options::default()
    };
    Play::with("sh", &options)
        .add("A=1 B=1 C=1")
        .clients("2001:db8::1>C 2001:db8:1:2:3:4:5:6>B fd00::1>A");
}
