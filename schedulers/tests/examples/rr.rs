use crate::play::Play;

#[test]
fn newest_first_and_round() {
    Play::new("rr").add("A=1 B=1 C=1").picks("C B A C B A C");
}

#[test]
fn weight_0_is_passed_over() {
    Play::new("rr").add("A=1 B=0 C=1").picks("C A C A");
}

#[test]
fn after_a_removal_the_successor_is_next() {
    Play::new("rr")
        .add("A=1 B=1 C=1")
        .picks("C B")
        .remove('B')
        .picks("A C A");
    Play::new("rr")
        .add("A=1 B=1 C=1")
        .picks("C")
        .remove('C')
        .picks("B A B");
}

#[test]
fn a_new_server_waits_until_the_walk_goes_round() {
    Play::new("rr")
        .add("A=1 B=1 C=1")
        .picks("C B")
        .add("D=1")
        .picks("A D C B A D");
}

#[test]
fn the_position_survives_finding_nothing() {
    Play::new("rr")
        .add("A=1 B=1 C=1")
        .picks("C")
        .weigh("A=0 B=0 C=0")
        .picks("- -")
        .weigh("A=1 B=1 C=1")
        .picks("B A C");
}

#[test]
fn overload_is_passed_over_and_the_last_one_may_be_picked_again() {
    Play::new("rr")
        .add("A=1 B=1")
        .overload('A', true)
        .picks("B B B")
        .overload('B', true)
        .picks("-");
}
