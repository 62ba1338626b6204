//! Random histories of a node, checked after each step and at the end.
//!
//! A history has events in any order, lost events, relists, refused writes, lost answers, changes of
//! the kernel by other programs, open connections, and kills at any write.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "engine/kernel.rs"]
mod kernel;
#[path = "engine/node.rs"]
mod node;
#[path = "engine/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proxier::testing::dataplane::fake::Fault;

use kernel::Drift;
use node::Node;
use world::{Change, change};

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    /// The cluster changes, and the proxier receives the event.
    Change(Change),
    /// The cluster changes, and the event is lost until the next relist.
    LostEvent(Change),
    RelistServices,
    RelistSlices,
    Sync,
    Resync,
    /// A number of seconds passes.
    Wait(u8),
    /// This number of writes succeeds, then the next one fails.
    Fault(u8, Fault),
    /// This number of writes succeeds, then the process is killed at the next one.
    Kill(u8),
    /// Another program changes the object of ours at this index, or all of a kind.
    Drift(Drift, u8),
    /// Another program removes the ledger's file.
    RemoveLedger,
    /// Another program empties the ledger's file.
    EmptyLedger,
    /// Another program cuts the second half of the ledger's file.
    CutLedger,
    /// Clients open connections to the destination at this index.
    Connect(u8),
    /// Clients close their connections to the destination at this index.
    Disconnect(u8),
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Refused),
        Just(Fault::AnswerLost),
        Just(Fault::RequestLost)
    ]
}

fn drift() -> impl Strategy<Value = Drift> {
    select(vec![
        Drift::DeleteVirtualServers,
        Drift::DeleteVirtualServer,
        Drift::DeleteAddresses,
        Drift::DeleteAddress,
        Drift::DeleteCarrier,
        Drift::SetCarrierDown,
        Drift::AddOtherForm,
        Drift::DeleteDestination,
        Drift::ChangeWeight,
        Drift::DeleteRules,
    ])
}

/// What interrupts the process before a round, or in it.
#[derive(Clone, Copy, Debug)]
enum Interruption {
    None,
    Restart,
    Kill,
}

fn interruption() -> impl Strategy<Value = Interruption> {
    prop_oneof![
        4 => Just(Interruption::None),
        1 => Just(Interruption::Restart),
        1 => Just(Interruption::Kill),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => change().prop_map(Step::Change),
        2 => change().prop_map(Step::LostEvent),
        1 => Just(Step::RelistServices),
        1 => Just(Step::RelistSlices),
        6 => Just(Step::Sync),
        1 => Just(Step::Resync),
        2 => (0..90_u8).prop_map(Step::Wait),
        2 => (0..6_u8, fault()).prop_map(|(after, fault)| Step::Fault(after, fault)),
        1 => (0..6_u8).prop_map(Step::Kill),
        1 => (drift(), any::<u8>()).prop_map(|(drift, index)| Step::Drift(drift, index)),
        1 => Just(Step::RemoveLedger),
        1 => Just(Step::EmptyLedger),
        1 => Just(Step::CutLedger),
        1 => any::<u8>().prop_map(Step::Connect),
        1 => any::<u8>().prop_map(Step::Disconnect),
    ]
}

fn play(node: &mut Node, step: Step) {
    match step {
        Step::Change(change) => node.change(change),
        Step::LostEvent(change) => _ = node.world.apply(change),
        Step::RelistServices => node.receive(Some(node.world.all_services())),
        Step::RelistSlices => node.receive(Some(node.world.all_slices())),
        Step::Sync => _ = node.sync(),
        Step::Resync => _ = node.resync(),
        Step::Wait(seconds) => node.wait(seconds.into()),
        Step::Fault(after, fault) => node.kernel.fail_after(after.into(), fault),
        Step::Kill(after) => node.kernel.kill_after(after.into()),
        Step::Drift(drift, index) => node.kernel.drift(drift, index.into()),
        Step::RemoveLedger => node.lose_ledger(|file| _ = std::fs::remove_file(file)),
        Step::EmptyLedger => node.lose_ledger(|file| std::fs::write(file, "").unwrap()),
        Step::CutLedger => node.lose_ledger(|file| {
            let text = std::fs::read(file).unwrap_or_default();
            std::fs::write(file, &text[..text.len() / 2]).unwrap();
        }),
        Step::Connect(index) => node.kernel.set_connections(index.into(), 3),
        Step::Disconnect(index) => node.kernel.set_connections(index.into(), 0),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn after_any_history_the_kernel_has_what_the_plan_asks_for(steps in vec(step(), 1..60)) {
        let mut node = Node::start();
        for step in steps {
            play(&mut node, step);
            node.assert_foreign_unchanged();
        }
        node.settle_without_faults();
        node.assert_programmed();
        node.assert_nothing_is_written();
    }

    /// TCP connections keep their destination as long as their Service exists and their drain time lasts,
    /// whatever happens to frontends, endpoints, the ledger's file, and the process.
    #[test]
    fn no_connection_of_a_service_that_exists_is_lost(
        steps in vec(prop_oneof![4 => step(), 1 => any::<u8>().prop_map(Step::Connect)], 1..80),
    ) {
        let mut node = Node::with_drain(Duration::from_secs(1_000_000));
        for step in steps {
            node.assert_loses_none(|node| match step {
                Step::Connect(index) => node.connect(index.into()),
                step => play(node, step),
            });
        }
        node.settle_without_faults();
        node.assert_programmed();
    }

    #[test]
    fn failed_writes_are_repeated_without_a_resync(
        rounds in vec((change(), 0..6_u8, fault()), 1..30),
    ) {
        let mut node = Node::start();
        for (change, after, fault) in rounds {
            node.change(change);
            node.kernel.fail_after(after.into(), fault);
            node.sync();
        }
        node.kernel.clear_faults();
        node.settle();
        node.assert_programmed();
    }

    #[test]
    fn an_incremental_plan_equals_one_from_scratch(changes in vec((change(), any::<bool>()), 1..80)) {
        let mut node = Node::start();
        for (change, sync) in changes {
            node.change(change);
            if sync {
                node.sync();
                node.assert_planned_as_from_scratch();
            }
        }
    }

    /// While a service address is local, also across a restart, rules reject connections to it outside
    /// its frontends.
    #[test]
    fn no_service_address_is_local_without_its_rule(
        rounds in vec((vec(change(), 1..6), interruption()), 1..20),
    ) {
        let mut node = Node::start();
        for (changes, interruption) in rounds {
            changes.into_iter().for_each(|change| node.change(change));
            match interruption {
                Interruption::None => {}
                Interruption::Restart => node.restart(),
                Interruption::Kill => node.kernel.kill_after(3),
            }
            node.sync();
            node.kernel.clear_faults();
            prop_assert_eq!(node.kernel.open_addresses(), BTreeSet::new());
        }
    }

    #[test]
    fn without_failures_one_round_is_enough(rounds in vec(vec(change(), 1..6), 1..20)) {
        let mut node = Node::start();
        for changes in rounds {
            changes.into_iter().for_each(|change| node.change(change));
            node.sync();
            node.assert_serving();
        }
    }
}

/// Kills the process 200 times, at different writes, while the cluster keeps changing.
#[test]
fn the_process_after_each_of_200_kills_completes_the_state() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let mut draw = |node: &mut Node| {
        node.change(change().new_tree(&mut runner).unwrap().current());
    };
    let mut node = Node::start();
    let (mut kills, mut rounds) = (0, 0);
    while kills < 200 {
        for _ in 0..3 {
            draw(&mut node);
        }
        node.kernel.kill_after(rounds % 5);
        rounds += 1;
        if !node.sync() {
            kills += 1;
            assert!(node.sync(), "the next process is not killed");
            node.assert_serving();
            node.assert_foreign_unchanged();
        }
        assert!(rounds < 2_000, "only {kills} kills");
    }
    node.settle_without_faults();
    node.assert_programmed();
}
