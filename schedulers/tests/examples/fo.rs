use crate::play::Play;

#[test]
fn the_heaviest_eligible_server_is_picked() {
    Play::new("fo")
        .counting()
        .add("A=1 B=5 C=5")
        .picks("C C C")
        .overload('C', true)
        .picks("B")
        .overload('B', true)
        .picks("A")
        .weigh("A=0")
        .picks("-");
}
