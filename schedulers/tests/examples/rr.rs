use crate::play::Play;

#[test]
fn servers_are_picked_in_turn_newest_first() {
    Play::new("rr").add("A=1 B=1 C=1").picks("C B A C B A C");
}

#[test]
fn weight_0_is_skipped() {
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
fn a_new_server_is_picked_after_the_end_of_the_list() {
    Play::new("rr")
        .add("A=1 B=1 C=1")
        .picks("C B")
        .add("D=1")
        .picks("A D C B A D");
}

#[test]
fn the_position_survives_a_refused_connection() {
    Play::new("rr")
        .add("A=1 B=1 C=1")
        .picks("C")
        .weigh("A=0 B=0 C=0")
        .picks("- -")
        .weigh("A=1 B=1 C=1")
        .picks("B A C");
}

#[test]
fn overloaded_servers_are_skipped_and_the_only_one_left_is_picked_again() {
    Play::new("rr")
        .add("A=1 B=1")
        .overload('A', true)
        .picks("B B B")
        .overload('B', true)
        .picks("-");
}
