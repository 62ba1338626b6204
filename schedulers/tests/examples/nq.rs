use crate::play::Play;

#[test]
fn idle_servers_are_picked_first_whatever_their_weight() {
    Play::new("nq")
        .counting()
        .add("A=1 B=2 C=3")
        .picks("C B A C C B C B C C B A");
    Play::new("nq")
        .counting()
        .add("A=100 B=1")
        .picks("B A A A A A");
}

#[test]
fn inactive_connections_do_not_count() {
    Play::new("nq").add("A=1 B=1").count('B', 0, 50).picks("B");
}

#[test]
fn without_idle_servers_it_picks_as_sed() {
    Play::new("nq")
        .add("A=3 B=1 C=0")
        .count('A', 5, 0)
        .count('B', 1, 0)
        .picks("B");
    Play::new("nq").add("A=0").picks("-");
}
