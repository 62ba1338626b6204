use crate::play::Play;

#[test]
fn connections_are_shared_by_weight() {
    Play::new("wlc")
        .counting()
        .add("A=1 B=2 C=3")
        .picks("C B A C B C C B A C B C");
}

#[test]
fn the_newest_server_wins_a_tie() {
    let play = || {
        Play::new("wlc")
            .add("A=2 B=3")
            .count('A', 2, 0)
            .count('B', 3, 0)
    };
    play().picks("B");
    play().count('B', 3, 1).picks("A");
}

#[test]
fn weight_0_is_skipped() {
    Play::new("wlc")
        .add("A=100 B=0 C=1")
        .count('A', 150, 0)
        .count('C', 1, 0)
        .picks("C");
}

#[test]
fn a_load_that_overflows_to_negative_wins() {
    for play in [Play::new("wlc"), Play::classic("wlc")] {
        play.add("A=1 B=1").count('A', 1 << 23, 0).picks("A");
    }
    // The scan skips weight 0 only until the first eligible server, so weight 0 may win, too.
    Play::new("wlc")
        .add("A=0 B=1")
        .count('A', 1 << 23, 0)
        .picks("A");
    Play::new("wlc")
        .add("A=1 B=0")
        .count('B', 1 << 23, 0)
        .picks("A");
}

#[test]
fn flavours_weigh_inactive_connections_differently() {
    let play = |play: Play, inactive, expected| {
        play.add("A=1 B=1")
            .count('A', 0, inactive)
            .count('B', 1, 0)
            .picks(expected);
    };
    play(Play::new("wlc"), 256, "A");
    play(Play::classic("wlc"), 256, "B");
    play(Play::new("wlc"), 257, "B");
}
