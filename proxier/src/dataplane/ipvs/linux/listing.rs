//! A cheap look at the virtual servers: one pass over `/proc/net/ip_vs`.
//!
//! At 10,000 x 10, a dump needs 30,000 system calls, one pass 1,667. Most of a pass is the kernel's:
//! it prints a page per read, and looks for the place to continue from the start of its table.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};

use ipvs_netlink as ipvs;
use ipvs_netlink::listing::{self, ListedDestination, ListedService};

use crate::dataplane::ipvs::Portion;
use crate::dataplane::ipvs::observed::ObservedServer;
use crate::dataplane::ipvs::split_map::SplitMap;

/// Returns the virtual servers in the order in which this portion of the file of the calling thread's
/// network namespace lists them, if it lists `expected`: exactly these if it is the whole file.
///
/// `None` also if the file cannot be read: then only a dump shows what differs.
pub(super) fn look(
    expected: &SplitMap<ipvs::ServiceKey, ObservedServer>,
    portion: Portion,
) -> Option<Vec<ipvs::ServiceKey>> {
    let listed = File::open(listing::PATH)
        .and_then(|file| compare(file, expected, portion, listing::ticks_per_second()));
    listed.unwrap_or_else(|error| {
        tracing::debug!("{}: {error}; reading over netlink", listing::PATH);
        None
    })
}

/// Returns the virtual servers in the order of `source`, if `portion` of it lists `expected`.
fn compare(
    source: impl Read,
    expected: &SplitMap<ipvs::ServiceKey, ObservedServer>,
    portion: Portion,
    ticks_per_second: u32,
) -> io::Result<Option<Vec<ipvs::ServiceKey>>> {
    // The file may omit a virtual server (`listing::walk`), and list another one twice while Linux 7.2 moves
    // them to a larger table (`ip_vs_info_array`).
    let most = expected.len().min(portion.limit());
    let mut seen = HashSet::with_capacity(most);
    let mut order = Vec::with_capacity(most);
    let mut is_limited = false;
    let is_at_end = listing::walk(source, |service, destinations| {
        // The file lists the newest destination first; those of `expected` are sorted.
        destinations.sort_unstable_by_key(|destination| destination.key);
        // A firewall mark may be that of either address family.
        let mut candidates = service.key.candidates().filter(|key| !seen.contains(key));
        let found = candidates.find(|key| {
            let server = expected.get(key);
            server.is_some_and(|it| is_shown(*key, it, service, destinations, ticks_per_second))
        });
        let is_expected = found.is_some_and(|key| seen.insert(key));
        order.extend(found);
        is_limited = is_expected && seen.len() == portion.limit();
        is_expected && !is_limited
    })?;
    let is_equal = is_limited || is_at_end && seen.len() == expected.len();
    Ok(is_equal.then_some(order))
}

/// Returns whether the file lists `server` like this.
fn is_shown(
    key: ipvs::ServiceKey,
    server: &ObservedServer,
    service: &ListedService,
    destinations: &[ListedDestination],
    ticks_per_second: u32,
) -> bool {
    let own = &server.destinations;
    service.shows(&server.definition.at(key), ticks_per_second)
        && own.len() == destinations.len()
        && (own.iter().zip(destinations)).all(|(own, listed)| listed.shows(&own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::ipvs::destinations::Destinations;

    const HEADING: &str = "IP Virtual Server version 1.2.1 (size=4096)\n";

    fn server(
        key: ipvs::ServiceKey,
        destinations: &[(&str, u32)],
    ) -> (ipvs::ServiceKey, ObservedServer) {
        let destination = |&(address, weight): &(&str, u32)| {
            let address: std::net::SocketAddr = address.parse().unwrap();
            ipvs::Destination::new(address.into(), weight)
        };
        let destinations: Vec<_> = destinations.iter().map(destination).collect();
        let service = ipvs::Service::new(key, "rr".parse().unwrap());
        let mut server = ObservedServer::empty(&service);
        server.destinations = Destinations::from(destinations);
        (key, server)
    }

    fn expected() -> SplitMap<ipvs::ServiceKey, ObservedServer> {
        let tcp = ipvs::ServiceKey::Address {
            protocol: ipvs::Protocol::Tcp,
            address: [10, 96, 0, 1].into(),
            port: 80,
        };
        let mark = |family| ipvs::ServiceKey::Mark { family, mark: 7 };
        let (v4, v6) = (mark(ipvs::Family::V4), mark(ipvs::Family::V6));
        let servers = [
            server(tcp, &[("10.128.0.1:8080", 1), ("10.128.0.2:8080", 0)]),
            server(v4, &[]),
            server(v6, &[]),
        ];
        servers.into_iter().collect()
    }

    const TCP: &str = "TCP  0A600001:0050 rr  \n";
    const FIRST: &str = "  -> 0A800001:1F90      Masq    1      3          0         \n";
    const SECOND: &str = "  -> 0A800002:1F90      Masq    0      0          9         \n";
    const MARK: &str = "FWM  00000007 rr \n";

    #[test]
    fn only_a_listing_of_all_virtual_servers_is_equal() {
        for (label, lines, is_equal) in [
            (
                "the newest first",
                vec![MARK, TCP, SECOND, FIRST, MARK],
                true,
            ),
            (
                "the oldest first",
                vec![TCP, FIRST, SECOND, MARK, MARK],
                true,
            ),
            (
                "a virtual server is missing",
                vec![TCP, SECOND, FIRST, MARK],
                false,
            ),
            (
                "a virtual server is listed twice",
                vec![TCP, SECOND, FIRST, MARK, MARK, MARK],
                false,
            ),
            (
                "one twice, another missing",
                vec![TCP, SECOND, FIRST, TCP, SECOND, FIRST, MARK],
                false,
            ),
            (
                "a destination is missing",
                vec![TCP, FIRST, MARK, MARK],
                false,
            ),
            (
                "a destination is listed twice",
                vec![TCP, FIRST, FIRST, MARK, MARK],
                false,
            ),
            (
                "a foreign destination",
                vec![TCP, FIRST, SECOND, MARK, FIRST, MARK],
                false,
            ),
            (
                "a foreign virtual server",
                vec![TCP, SECOND, FIRST, MARK, MARK, "FWM  00000008 rr \n"],
                false,
            ),
            ("nothing", vec![], false),
        ] {
            let text = HEADING.to_owned() + &lines.concat();
            let equal = compare(text.as_bytes(), &expected(), Portion::Whole, 250).unwrap();
            assert_eq!(equal.is_some(), is_equal, "{label}");
        }
        let weight = FIRST.replace("Masq    1 ", "Masq    2 ");
        let text = [HEADING, TCP, SECOND, &weight, MARK, MARK].concat();
        let equal = compare(text.as_bytes(), &expected(), Portion::Whole, 250).unwrap();
        assert_eq!(equal, None);
    }

    #[test]
    fn a_look_at_the_beginning_ends_after_a_few_virtual_servers() {
        let key = |number: u8| ipvs::ServiceKey::Address {
            protocol: ipvs::Protocol::Tcp,
            address: [10, 96, 0, number].into(),
            port: 80,
        };
        let expected: SplitMap<_, _> = (1..=9).map(|it| server(key(it), &[])).collect();
        let line =
            |number: u8, scheduler: &str| format!("TCP  0A6000{number:02X}:0050 {scheduler}  \n");
        let listed = |scheduler_of: fn(u8) -> &'static str| {
            let lines: Vec<_> = (1..=9).map(|it| line(it, scheduler_of(it))).collect();
            HEADING.to_owned() + &lines.concat()
        };
        for (label, text, at_beginning, whole) in [
            ("equal", listed(|_| "rr"), true, true),
            (
                "the first differs",
                listed(|it| if it == 1 { "lc" } else { "rr" }),
                false,
                false,
            ),
            (
                "the last differs",
                listed(|it| if it == 9 { "lc" } else { "rr" }),
                true,
                false,
            ),
            (
                "only two are left",
                HEADING.to_owned() + &line(1, "rr") + &line(2, "rr"),
                false,
                false,
            ),
            ("flushed", HEADING.to_owned(), false, false),
        ] {
            for (portion, is_equal) in [(Portion::Beginning, at_beginning), (Portion::Whole, whole)]
            {
                let equal = compare(text.as_bytes(), &expected, portion, 250).unwrap();
                assert_eq!(equal.is_some(), is_equal, "{label}, {portion:?}");
            }
        }
    }

    #[test]
    fn a_listing_that_ends_in_a_line_is_an_error() {
        let text = [HEADING, TCP, SECOND, FIRST, MARK, "FWM  0000"].concat();
        assert!(compare(text.as_bytes(), &expected(), Portion::Whole, 250).is_err());
    }
}
