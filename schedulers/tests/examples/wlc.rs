use crate::play::Play;

#[test]
fn by_weight() {
    Play::new("wlc")
        .counting()
        .add("A=1 B=2 C=3")
        .picks("C B A C B C C B A C B C");
}

#[test]
fn ties_go_to_the_newest() {
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
fn weight_0_is_passed_over() {
    Play::new("wlc")
        .add("A=100 B=0 C=1")
        .count('A', 150, 0)
        .count('C', 1, 0)
        .picks("C");
}

#[test]
fn overflows_to_negative_and_wins() {
    for play in [Play::new("wlc"), Play::classic("wlc")] {
        play.add("A=1 B=1").count('A', 1 << 23, 0).picks("A");
    }
    // Not excluded after the first eligible one, so even weight 0 wins then.
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
