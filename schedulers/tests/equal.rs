//! Indexed and plain implementations make the same picks, over long random histories.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use schedulers::{Flavour, Implementation};

mod history;

use history::{Event, Side, flavour, history};

fn play_both(name: &'static str, flavour: Flavour, events: &[Event]) -> Result<(), TestCaseError> {
    let mut plain = Side::new(name, flavour, Implementation::Plain);
    let mut indexed = Side::new(name, flavour, Implementation::Indexed);
    for (step, event) in events.iter().enumerate() {
        let [expected, picked] = [plain.play(event), indexed.play(event)];
        prop_assert_eq!(picked, expected, "{} at step {}: {:?}", name, step, event);
        prop_assert_eq!(&plain.servers, &indexed.servers);
    }
    Ok(())
}

/// Weights of every size.
const WEIGHTS: &[u32] = &[0, 0, 1, 1, 2, 3, 5, 100, 65_536, 1 << 30, i32::MAX as u32];

/// Few levels, because the plain wrr scans the list once per level; with various divisors.
const FEW_LEVELS: &[u32] = &[0, 0, 1, 1, 2, 3, 4, 6, 9, 10, 24, 200];

/// Great weights with few levels, because they have a common divisor.
const GREAT: &[u32] = &[0, 100_000_000, 200_000_000, 500_000_000, 2_000_000_000];

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn lc(flavour in flavour(), events in history(WEIGHTS)) {
        play_both("lc", flavour, &events)?;
    }

    #[test]
    fn wlc(flavour in flavour(), events in history(WEIGHTS)) {
        play_both("wlc", flavour, &events)?;
    }

    #[test]
    fn sed(flavour in flavour(), events in history(WEIGHTS)) {
        play_both("sed", flavour, &events)?;
    }

    #[test]
    fn nq(flavour in flavour(), events in history(WEIGHTS)) {
        play_both("nq", flavour, &events)?;
    }

    #[test]
    fn wrr(events in history(FEW_LEVELS)) {
        play_both("wrr", Flavour::Total, &events)?;
    }

    #[test]
    fn wrr_with_great_weights(events in history(GREAT)) {
        play_both("wrr", Flavour::Total, &events)?;
    }
}
