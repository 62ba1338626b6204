use crate::play::Play;

#[test]
fn the_new_connection_is_counted() {
    Play::new("sed")
        .counting()
        .add("A=1 B=2 C=3")
        .picks("C B C C B A C B C C B A");
    Play::new("sed")
        .counting()
        .add("A=5 B=1")
        .picks("A A A A B A A A");
    Play::new("sed")
        .add("A=4 B=2")
        .count('A', 3, 0)
        .count('B', 1, 0)
        .picks("B");
}

#[test]
fn inactive_connections_do_not_count() {
    Play::new("sed")
        .counting()
        .add("A=1 B=1")
        .count('A', 0, 1000)
        .picks("B A B");
}

#[test]
fn only_eligible_servers_are_picked() {
    Play::new("sed")
        .counting()
        .add("A=0 B=3 C=2")
        .overload('B', true)
        .picks("C C C");
    Play::new("sed").add("A=0").picks("-");
}
