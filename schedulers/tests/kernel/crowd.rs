//! More addresses than `lblc` and `lblcr` remember.
//!
//! The first server gets all of them, as many as there is room for and some more. Minutes later the
//! kernel has dropped some that were not asked for. Then there is a second server, which stands before
//! the first in the list and is as idle: who is asked for again goes to it exactly where the kernel
//! does not remember.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;

use crate::kernel::director::Director;
use crate::kernel::setup::{DAY_SECS, Setup, Traffic};
use crate::trace::{Flags, Flavour, Limits, Scenario};

/// Somewhat more than one and a half times 16384.
const ADDRESSES: u16 = 24_700;

/// The kernel drops what was not asked for in six minutes, and looks each minute, which its timers
/// make 61.44 seconds, and up to five more for the first. The sixth look is too early for any address
/// (368 to 373 seconds), the seventh late enough for all (429 to 434), the eighth long after.
const BEFORE: Duration = Duration::from_secs(20);
const UNTIL: Duration = Duration::from_secs(440);

/// Too coarse for anything that happens at a moment, and nothing does.
const TICK_MS: u64 = 10_000;

/// Plays it in the calling thread's network namespace, which is new.
pub(crate) fn play(scheduler: &str, is_v6: bool, flavour: Flavour) -> Result<Scenario> {
    let setup = Setup {
        scheduler: scheduler.into(),
        flags: Flags::default(),
        expiration_secs: DAY_SECS,
        // Nobody has a connection, so all servers are equally loaded, always.
        traffic: Traffic::OnePacket,
        frontend: SocketAddr::new(address(is_v6, 0), 80),
        by_mark: true,
        tick_ms: TICK_MS,
    };
    let mut director = Director::new(setup, flavour)?;
    let server = |host| SocketAddr::new(server_address(is_v6, host), 8080);
    let [first, second] = [
        director.introduce(server(1))?,
        director.introduce(server(2))?,
    ];
    director.add(first, 1, Limits::default())?;
    director.rest(BEFORE)?;
    ask(&mut director, is_v6)?;
    director.rest(UNTIL.saturating_sub(director.age()))?;
    director.add(second, 1, Limits::default())?;
    ask(&mut director, is_v6)?;
    Ok(director.into_scenario())
}

/// A connection to each address.
fn ask(director: &mut Director, is_v6: bool) -> Result<()> {
    let client = server_address(is_v6, 9);
    for (number, port) in (0..ADDRESSES).zip(20_000..) {
        let destination = SocketAddr::new(address(is_v6, number), 80);
        director.pick(SocketAddr::new(client, port), destination)?;
    }
    Ok(())
}

fn address(is_v6: bool, number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    match is_v6 {
        false => Ipv4Addr::new(10, 96, high, low).into(),
        true => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number).into(),
    }
}

fn server_address(is_v6: bool, host: u8) -> IpAddr {
    match is_v6 {
        false => Ipv4Addr::new(10, 16, 0, host).into(),
        true => Ipv6Addr::new(0xfd00, 0x16, 0, 0, 0, 0, 0, host.into()).into(),
    }
}
