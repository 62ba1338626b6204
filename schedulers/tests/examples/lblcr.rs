use std::time::Duration;

use crate::play::Play;
use schedulers::Options;

#[test]
fn the_set_grows_when_a_member_is_overrun() {
    Play::new("lblcr")
        .counting()
        .add("A=2 B=2 C=2")
        .picks("C C C B B B A A A A B C A B");
}

#[test]
fn the_set_shrinks_by_its_most_loaded_member() {
    Play::new("lblcr")
        .counting()
        .add("A=2 B=2 C=2")
        .picks("C C C B B B A A")
        .at(86_400)
        .picks("A")
        .at(86_401)
        .picks("A")
        .at(86_402)
        .picks("B")
        .at(172_803)
        .picks("C")
        .at(259_206)
        .picks("C");
}

#[test]
fn each_address_has_its_own_set() {
    Play::new("lblcr").counting().add("A=4 B=4").frontends(
        "10.0.1.1>B 10.0.1.2>A 10.0.1.1>B 10.0.1.2>A 10.0.1.1>B 10.0.1.1>B 10.0.1.1>B 10.0.1.1>B",
    );
}

/// Recorded from two kernels with an expiration of 2 s and pauses of 3.2 s.
#[test]
fn a_recorded_run_is_repeated() {
    let options = Options {
        lblcr_expiration: Duration::from_secs(2),
        ..Options::default()
    };
    Play::with("lblcr", &options)
        .counting()
        .add("A=2 B=2 C=2")
        .picks("C C C B B B A A")
        .at(4)
        .picks("A A C")
        .at(8)
        .picks("A C C")
        .at(12)
        .picks("C C C C");
}

/// The set is B and C when B is removed. Picks while C is full show which member is left.
#[test]
fn a_removed_member_counts_when_the_set_shrinks() {
    let left = |active_of_b, active_of_c, expected| {
        Play::new("lblcr")
            .add("A=1 B=1 C=1")
            .picks("C")
            .count('C', 2, 0)
            .picks("B")
            .count('B', 5, 0)
            .count('A', 1, 0)
            .at(50_000)
            .picks("C")
            .remove('B')
            .count('B', active_of_b, 0)
            .count('C', active_of_c, 0)
            .at(90_000)
            .picks("C")
            .count('C', 9, 0)
            .at(90_001)
            .picks(expected);
    };
    // B was dropped from the set.
    left(5, 2, "C");
    // C was dropped; B is left, but removed.
    left(1, 2, "A");
    // The same if B has no connections and is forgotten.
    left(0, 2, "A");
    // Equal loads: B joined last, so B was dropped.
    left(0, 0, "C");
}
