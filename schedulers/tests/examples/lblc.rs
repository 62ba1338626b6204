use crate::play::Play;

#[test]
fn an_overrun_server_is_replaced_if_another_has_little_load() {
    Play::new("lblc")
        .counting()
        .add("A=2 B=2 C=2")
        .picks("C C C B B B A A");
    Play::new("lblc")
        .counting()
        .add("A=1 B=1")
        .picks("B B A A A A");
}

#[test]
fn addresses_are_remembered_separately() {
    Play::new("lblc").counting().add("A=2 B=2 C=2").frontends(
        "10.0.1.1>C 10.0.1.2>B 10.0.1.3>A 10.0.1.1>C 10.0.1.2>B 10.0.1.1>C 10.0.1.1>C 10.0.1.1>C",
    );
}

#[test]
fn weight_0_or_removal_ends_the_use_of_a_server() {
    Play::new("lblc")
        .counting()
        .add("A=2 B=2")
        .picks("B")
        .weigh("B=0")
        .picks("A A");
    Play::new("lblc")
        .counting()
        .add("A=2 B=2")
        .picks("B")
        .remove('B')
        .picks("A");
}

#[test]
fn a_server_that_is_added_again_is_still_remembered() {
    Play::new("lblc")
        .add("A=2 B=2")
        .picks("B")
        .remove('B')
        .remove('A')
        .picks("-")
        .add("B=2 A=2")
        .picks("B");
}

#[test]
fn the_overload_mark_of_a_remembered_server_does_not_matter() {
    Play::new("lblc")
        .add("A=1 B=1")
        .overload('B', true)
        .picks("A")
        .overload('A', true)
        .picks("A")
        .overload('B', false)
        .picks("A");
}

#[test]
fn an_unused_address_is_forgotten_after_a_day() {
    let play = || {
        Play::new("lblc")
            .add("A=2 B=2")
            .at(5)
            .picks("B")
            .count('B', 1, 0)
    };
    play().at(86_400 + 1_800).picks("B");
    play().at(86_400 + 1_801).picks("A");
    play().at(86_000).picks("B").at(86_400 + 1_801).picks("B");
}
