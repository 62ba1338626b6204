use crate::play::Play;

#[test]
fn levels_decrease_and_the_first_cycle_starts_low() {
    Play::new("wrr")
        .add("A=1 B=2 C=4")
        .picks("C B A | C C C B C B A | C C C B");
}

#[test]
fn levels_differ_by_the_greatest_common_divisor() {
    Play::new("wrr").add("A=2 B=4").picks("B A B B A B");
    Play::new("wrr")
        .add("A=6 B=3 C=9")
        .picks("C B A C C A C B A C C A");
    Play::new("wrr").add("A=3 B=3 C=3").picks("C B A C B A C");
}

#[test]
fn a_change_restarts_the_round() {
    Play::new("wrr")
        .add("A=1 B=2 C=4")
        .picks("C B A C")
        .weigh("A=3")
        .picks("C C A C B A C B A C C A");
    Play::new("wrr")
        .add("A=1 B=2 C=4")
        .picks("C B A C C")
        .remove('C')
        .picks("B B A B B A");
    Play::new("wrr")
        .add("A=10 B=4")
        .picks("B A A")
        .weigh("B=6")
        .picks("A A B A B A B A A");
}

#[test]
fn setting_the_same_weight_restarts_the_round() {
    Play::new("wrr")
        .add("A=1 B=1 C=1")
        .picks("C B")
        .weigh("A=1")
        .picks("C B A");
}

#[test]
fn overloaded_servers_are_skipped_until_none_is_left() {
    Play::new("wrr")
        .add("A=1 B=2 C=4")
        .overload('C', true)
        .picks("B A B B A B")
        .overload('B', true)
        .overload('A', true)
        .picks("- -")
        .overload('A', false)
        .picks("A A A");
}

#[test]
fn without_weights_there_is_no_pick() {
    Play::new("wrr").add("A=0 B=0").picks("- -");
    Play::new("wrr").picks("-");
}
