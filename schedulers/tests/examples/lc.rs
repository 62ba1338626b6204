use crate::play::Play;

#[test]
fn flavours_weigh_inactive_connections_differently() {
    let play = |play: Play, inactive| {
        play.add("A=1 B=1 C=1")
            .count('A', 1, 0)
            .count('B', 0, inactive)
            .count('C', 2, 0)
    };
    play(Play::new("lc"), 257).picks("B");
    play(Play::classic("lc"), 257).picks("A");
    play(Play::new("lc"), 256).picks("B");
    play(Play::classic("lc"), 256).picks("B");
}

#[test]
fn weights_above_0_do_not_matter() {
    Play::new("lc")
        .counting()
        .add("A=1 B=9 C=1")
        .picks("C B A C B A C");
    Play::new("lc")
        .counting()
        .add("A=1 B=0 C=1")
        .picks("C A C A");
}

#[test]
fn loads_are_compared_unsigned() {
    Play::new("lc")
        .add("A=1 B=1")
        .count('A', 1 << 23, 0)
        .count('B', 1 << 22, 0)
        .picks("B");
}

#[test]
fn loads_wrap_in_32_bits() {
    Play::classic("lc")
        .add("A=1 B=1")
        .count('A', 1 << 24, 0)
        .count('B', 1, 0)
        .picks("A");
    Play::new("lc")
        .add("A=1 B=1")
        .count('A', 1 << 24, 0)
        .count('B', 1, 0)
        .picks("B");
}
