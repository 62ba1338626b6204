//! What a scenario is about.
//!
//! The kinds of traffic, families and flags follow from its number, so that any few in a row cover
//! them; the rest is drawn.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::kernel::dice::Dice;
use crate::kernel::setup::{DAY_SECS, Setup, TICK_MS, Traffic};
use crate::trace::Flags;

/// `lblcr_expiration` where it matters: more than what there is to do between two pauses takes, and
/// for sure less than a pause.
const EXPIRATION_SECS: u32 = 3;

/// Expirations for scenarios with naps. Each half hour `lblc` and `lblcr` look for addresses that
/// nobody asked for as long as that.
const AGES_SECS: [u32; 3] = [400, 1200, 2000];

/// A scenario to be played.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) setup: Setup,
    pub(crate) weights: Weights,
    /// How many servers there are at first, and at most.
    pub(crate) servers: usize,
    pub(crate) pool: usize,
    pub(crate) has_limits: bool,
    /// Whether the first server gets some 256 connections that are over: as much as one that is
    /// not.
    pub(crate) has_burden: bool,
    pub(crate) extent: Extent,
    pub(crate) dice: Dice,
}

/// How much of a scenario there is, at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// New connections.
    pub(crate) picks: usize,
    /// How often connections are left to expire, at a second each.
    pub(crate) expiries: u32,
    /// How often to wait until `lblcr` may shrink its sets, for three seconds.
    pub(crate) pauses: u32,
    /// Seconds of doing nothing, between as many equal parts and one more; for `lblc` and `lblcr`,
    /// which forget.
    pub(crate) naps: &'static [u64],
}

/// What weights servers get; 0 besides, now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// 1.
    Equal,
    /// 1 to 4.
    Few,
    /// 1 to 100.
    Spread,
    /// 6 to 60 in steps of 6: with a divisor.
    Steps,
    /// Any number of bits.
    Wide,
}

impl Plan {
    /// Scenario `number` of `scheduler`.
    pub(crate) fn draw(scheduler: &str, number: u32, mut extent: Extent, seed: u64) -> Self {
        let dice_number = scheduler.bytes().fold(u64::from(number), |sum, byte| {
            sum.wrapping_mul(257).wrapping_add(byte.into())
        });
        let mut dice = Dice::new(seed, dice_number);
        let is_hash = ["sh", "mh"].contains(&scheduler);
        let by_locality = ["dh", "lblc", "lblcr"].contains(&scheduler);
        let counts_active = ["sed", "nq", "ovf", "lblc", "lblcr"].contains(&scheduler);
        let family_v4 = number.is_multiple_of(2);
        let frontend: IpAddr = match family_v4 {
            true => Ipv4Addr::new(10, 96, 0, 1).into(),
            false => Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 1).into(),
        };
        let traffic = match number / 2 % 4 {
            0 | 2 => Traffic::Tcp,
            1 if counts_active => Traffic::Tcp,
            1 => Traffic::Udp,
            _ if is_hash || number % 16 > 7 => Traffic::OnePacket,
            _ => Traffic::Udp,
        };
        let weights = [
            Weights::Equal,
            Weights::Few,
            Weights::Spread,
            Weights::Steps,
            Weights::Wide,
        ];
        let weights = match scheduler {
            // More active connections than weight is what these look for.
            "lblc" | "lblcr" | "ovf" if !dice.chance(20) => {
                *dice.choose(&[Weights::Equal, Weights::Few])
            }
            _ => *dice.choose(&weights),
        };
        let weighs_inactive = ["lc", "wlc", "lblc", "lblcr", "twos"].contains(&scheduler);
        let has_burden = weighs_inactive && matches!(number % 8, 0 | 1);
        if traffic == Traffic::OnePacket {
            extent.expiries = 0;
        }
        let expiration_secs = if !extent.naps.is_empty() {
            *dice.choose(&AGES_SECS)
        } else if scheduler == "lblcr" {
            EXPIRATION_SECS
        } else {
            DAY_SECS
        };
        if expiration_secs == EXPIRATION_SECS {
            // What there is to do between pauses must not take as long as they do.
            extent.expiries = extent.expiries.min(1);
        } else {
            extent.pauses = 0;
        }
        let servers = *dice.choose(&[1, 2, 3, 3, 4, 5, 6, 8, 12, 24]);
        Self {
            setup: Setup {
                scheduler: scheduler.into(),
                flags: Flags {
                    port: is_hash && number & 8 != 0,
                    fallback: is_hash && number & 16 != 0,
                },
                expiration_secs,
                traffic,
                frontend: SocketAddr::new(frontend, 443),
                tick_ms: TICK_MS,
                by_mark: by_locality && (!dice.chance(15) || !extent.naps.is_empty()),
            },
            weights,
            servers,
            pool: servers + servers / 2 + 2,
            has_limits: !has_burden && dice.chance(50),
            has_burden,
            extent,
            dice,
        }
    }
}
