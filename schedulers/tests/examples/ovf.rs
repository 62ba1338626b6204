use crate::play::Play;

#[test]
fn a_server_takes_one_connection_more_than_its_weight() {
    Play::new("ovf")
        .counting()
        .add("A=2 B=3 C=1")
        .picks("B B B B A A A C C - -");
    Play::new("ovf")
        .counting()
        .add("A=2 B=2")
        .picks("B B B A A A -");
    Play::new("ovf")
        .add("A=0 B=3")
        .count('B', 3, 0)
        .picks("B")
        .count('B', 4, 0)
        .picks("-");
}

#[test]
fn inactive_connections_do_not_count() {
    Play::new("ovf").add("A=1 B=3").count('B', 0, 50).picks("B");
}
