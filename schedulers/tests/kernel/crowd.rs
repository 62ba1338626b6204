//! More addresses than `lblc` and `lblcr` remember.
//!
//! The first server gets a connection to every address: as many as the table has room for, and some
//! more. Minutes later the kernel has forgotten some of the addresses. Then a second server is added. It
//! is the first of the list and equally idle, so a new connection to an address is sent to the second
//! server exactly if the kernel has forgotten the address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;

use crate::kernel::director::Director;
use crate::kernel::setup::{DAY_SECS, Setup, Traffic};
use crate::trace::{Flags, Flavour, Limits, Scenario};

/// Somewhat more than 3/2 of 16384, the limit.
const ADDRESSES: u16 = 24_700;

/// How long to wait before the first connections, and until the second server is added.
///
/// The kernel forgets addresses unused for six minutes. It checks every minute, which its timers make
/// 61.44 s, and up to 5 s more for the first time. The sixth check (368 to 373 s) is too early for every
/// address, the seventh (429 to 434 s) late enough for all, the eighth long after the end.
const BEFORE: Duration = Duration::from_secs(20);
const UNTIL: Duration = Duration::from_secs(440);

/// Coarse, because no result depends on the exact time of a pick.
const TICK_MS: u64 = 10_000;

/// Plays the scenario in the calling thread's network namespace, which must be new.
pub(crate) fn play(scheduler: &str, is_v6: bool, flavour: Flavour) -> Result<Scenario> {
    let setup = Setup {
        scheduler: scheduler.into(),
        flags: Flags::default(),
        expiration_secs: DAY_SECS,
        // No server has a connection, so the loads are always equal.
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

/// Makes a connection to each address.
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
