//! The engine under everything that can happen to it: events in any order, lost ones, relists,
//! failing and unanswered writes, strangers' hands on the kernel, connections that hold on, and
//! death at any write. What remains true, and what becomes true in the end.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "engine/kernel.rs"]
mod kernel;
#[path = "engine/node.rs"]
mod node;
#[path = "engine/world.rs"]
mod world;

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use proxier::testing::dataplane::fake::Fault;

use node::Node;
use world::{Happening, happening};

/// What is done between happenings.
#[derive(Clone, Debug)]
enum Step {
    World(Happening),
    /// An event that the daemon is told about and one that it is not, until the next relist.
    Unheard(Happening),
    RelistServices,
    RelistSlices,
    Sync,
    Resync,
    Wait(u8),
    /// The write that comes after so many others goes wrong.
    Fault(u8, Fault),
    /// The process dies at the write that comes after so many others.
    Die(u8),
    /// Somebody else changes the kernel.
    Drift(u8, u8),
    /// Another program removes the ledger's file, or cuts it, before a resync.
    LoseLedger(bool),
    /// Somebody connects, or leaves.
    Connections(u8, bool),
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Refused),
        Just(Fault::AnswerLost),
        Just(Fault::RequestLost)
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => happening().prop_map(Step::World),
        2 => happening().prop_map(Step::Unheard),
        1 => Just(Step::RelistServices),
        1 => Just(Step::RelistSlices),
        6 => Just(Step::Sync),
        1 => Just(Step::Resync),
        2 => (0..90_u8).prop_map(Step::Wait),
        2 => (0..6_u8, fault()).prop_map(|(after, fault)| Step::Fault(after, fault)),
        1 => (0..6_u8).prop_map(Step::Die),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(what, which)| Step::Drift(what, which)),
        1 => any::<bool>().prop_map(Step::LoseLedger),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(which, up)| Step::Connections(which, up)),
    ]
}

fn play(node: &mut Node, step: Step) {
    match step {
        Step::World(happening) => {
            let event = node.world.happen(happening);
            node.tell(event);
        }
        Step::Unheard(happening) => {
            let _ = node.world.happen(happening);
        }
        Step::RelistServices => node.tell(Some(node.world.all_services())),
        Step::RelistSlices => node.tell(Some(node.world.all_slices())),
        Step::Sync => _ = node.sync(),
        Step::Resync => _ = node.resync(),
        Step::Wait(seconds) => node.wait(seconds.into()),
        Step::Fault(after, fault) => node.kernel.fail_after(after.into(), fault),
        Step::Die(after) => node.kernel.die_after(after.into()),
        Step::Drift(what, which) => node.kernel.drift(what, which.into()),
        Step::LoseLedger(is_cut) => node.lose_ledger(is_cut),
        Step::Connections(which, up) => node.kernel.connections(which.into(), up),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_kernel_becomes_what_it_should_be(steps in vec(step(), 1..60)) {
        let mut node = Node::start();
        for step in steps {
            play(&mut node, step);
            node.nothing_foreign_is_touched();
        }
        node.calm_down();
        node.kernel_is_what_it_should_be();
        node.nothing_is_written();
    }

    #[test]
    fn failures_are_made_good_without_reading_everything_back(
        rounds in vec((happening(), 0..6_u8, fault()), 1..30),
    ) {
        let mut node = Node::start();
        for (happening, after, fault) in rounds {
            let event = node.world.happen(happening);
            node.tell(event);
            node.kernel.fail_after(after.into(), fault);
            node.sync();
        }
        node.kernel.behave();
        node.come_to_rest();
        node.kernel_is_what_it_should_be();
    }

    #[test]
    fn planned_piece_by_piece_is_planned_at_once(happenings in vec((happening(), any::<bool>()), 1..80)) {
        let mut node = Node::start();
        for (happening, sync) in happenings {
            let event = node.world.happen(happening);
            node.tell(event);
            if sync {
                node.sync();
                node.plan_is_the_one_from_scratch();
            }
        }
    }

    /// Whatever becomes local is refused where no frontend is before, and until after; in the next
    /// process, too.
    #[test]
    fn no_address_is_open_between_two_writes(
        rounds in vec((vec(happening(), 1..6), 0..6_u8), 1..20),
    ) {
        let mut node = Node::start();
        for (happenings, way) in rounds {
            for happening in happenings {
                let event = node.world.happen(happening);
                node.tell(event);
            }
            match way {
                0 => node.restart(),
                1 => node.kernel.die_after(3),
                _ => {}
            }
            node.sync();
            node.kernel.behave();
            prop_assert_eq!(node.kernel.open_addresses(), BTreeSet::new());
        }
    }

    #[test]
    fn without_failures_one_round_is_enough(rounds in vec(vec(happening(), 1..6), 1..20)) {
        let mut node = Node::start();
        for happenings in rounds {
            for happening in happenings {
                let event = node.world.happen(happening);
                node.tell(event);
            }
            node.sync();
            node.kernel_serves_what_it_should();
        }
    }
}

/// Two hundred deaths at random writes in an endless series of changes.
#[test]
fn two_hundred_deaths() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let mut draw = |node: &mut Node| {
        let happening = happening().new_tree(&mut runner).unwrap().current();
        let event = node.world.happen(happening);
        node.tell(event);
    };
    let mut node = Node::start();
    let (mut deaths, mut rounds) = (0, 0);
    while deaths < 200 {
        for _ in 0..3 {
            draw(&mut node);
        }
        node.kernel.die_after(rounds % 5);
        rounds += 1;
        if !node.sync() {
            deaths += 1;
            assert!(node.sync(), "the next one lives");
            node.kernel_serves_what_it_should();
            node.nothing_foreign_is_touched();
        }
        assert!(rounds < 2_000, "{deaths} deaths only");
    }
    node.calm_down();
    node.kernel_is_what_it_should_be();
}
