use std::time::Duration;

use crate::play::Play;
use schedulers::Options;

#[test]
fn the_set_grows() {
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
fn addresses_have_sets_of_their_own() {
    Play::new("lblcr").counting().add("A=4 B=4").dials(
        "10.0.1.1>B 10.0.1.2>A 10.0.1.1>B 10.0.1.2>A 10.0.1.1>B 10.0.1.1>B 10.0.1.1>B 10.0.1.1>B",
    );
}

/// As two kernels did, with an expiration of 2 s and pauses of 3.2 s.
#[test]
fn a_recorded_run() {
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

/// B and C are the set when B is removed; what is left of the set shows when C is full.
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
    // B has left.
    left(5, 2, "C");
    // C has left; B is not there to serve.
    left(1, 2, "A");
    // As good as forgotten, and no different.
    left(0, 2, "A");
    // Equally loaded: B joined last, so it has left.
    left(0, 0, "C");
}
