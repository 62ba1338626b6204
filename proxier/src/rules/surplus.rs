//! What the kernel has beside the rules that are wanted, where not all that is wanted is known.
//!
//! A process that starts with part of its input does not know the other frontends, but the kernel has
//! their virtual servers and, from the process before, their rules. Both stay.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::names::{FRONTENDS, GUARDED, INSIDE, INSIDE_MARKS, SERVICE_ADDRESSES, inside};
use crate::nftables::{Set, Table, Value, Verdict};

/// What becomes of rules that are there and not wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Surplus {
    /// They go.
    Goes,
    /// Those of frontends, addresses, endpoints and health checks that are not known stay. Known
    /// frontends are guarded by the rules that are wanted alone.
    Stays {
        /// The machine's own addresses: these are no service addresses, whatever is not known.
        own: Arc<BTreeSet<IpAddr>>,
    },
}

impl Surplus {
    /// Takes out of `there` what is not in `wanted` and stays, so that nothing is done about it.
    pub fn hide(&self, there: &mut Table, wanted: &Table) {
        let Self::Stays { own } = self else {
            return;
        };
        // The chains that hidden elements lead to.
        let mut needed = BTreeSet::new();
        for set in there.sets.values_mut() {
            if &*set.name != INSIDE_MARKS {
                hide_elements(set, wanted, own, &mut needed);
            }
        }
        if let Some(marks) = there.sets.get_mut(INSIDE_MARKS) {
            let is_needed =
                |part: &Value| matches!(part, Value::Mark(mark) if needed.contains(&inside(*mark)));
            marks.elements.retain(|key, _| {
                wanted.has_element(INSIDE_MARKS, key) || !key.parts().iter().any(is_needed)
            });
        }
        there
            .chains
            .retain(|name, _| wanted.chains.contains_key(name) || !needed.contains(name));
    }
}

fn hide_elements(
    set: &mut Set,
    wanted: &Table,
    own: &BTreeSet<IpAddr>,
    needed: &mut BTreeSet<Arc<str>>,
) {
    let name = set.name.clone();
    let frontends = frontends_of(&name);
    let is_of_services = SERVICE_ADDRESSES.family_of(&name).is_some();
    let is_own = |part: &Value| match part {
        Value::V4(address) => own.contains(&(*address).into()),
        Value::V6(address) => own.contains(&(*address).into()),
        _ => false,
    };
    set.elements.retain(|key, verdict| {
        let is_known = frontends.is_some_and(|it| wanted.has_element(it, key))
            || is_of_services && key.parts().iter().any(is_own);
        let stands = is_known || wanted.has_element(&name, key);
        if let Some(Verdict::Jump(chain) | Verdict::Goto(chain)) = verdict
            && !stands
        {
            needed.insert(chain.clone());
        }
        stands
    });
}

/// The set of all frontends, if the set `name` is one of some frontends.
fn frontends_of(name: &str) -> Option<&'static str> {
    let of_some = [GUARDED, INSIDE].into_iter();
    let family = of_some.filter_map(|it| it.family_of(name)).next();
    family.map(|family| FRONTENDS.of(family))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Family, Networks, Protocol, TrafficPolicy};
    use crate::rules::{Config, Endpoints, Frontend, Kind, Place, table};

    fn place(last: u8) -> Place {
        Place {
            address: [198, 51, 100, last].into(),
            protocol: Protocol::Tcp,
            port: 80,
        }
    }

    /// One with source ranges, and a firewall mark for clients inside.
    fn frontend(mark: u32) -> Frontend {
        let ranges = "203.0.113.0/24".parse().unwrap();
        Frontend {
            kind: Kind::External,
            policy: TrafficPolicy::Local,
            endpoints: Endpoints::Elsewhere,
            source_ranges: Some(Networks::new(Family::V4, [ranges])),
            inside: Some(mark),
        }
    }

    /// The rules for frontends at these addresses, which answer to ping if somebody serves them.
    fn rules(frontends: &[(u8, Frontend)]) -> Table {
        let frontends: Vec<_> = frontends
            .iter()
            .map(|(last, frontend)| (place(*last), frontend.clone()))
            .collect();
        let addresses = frontends.iter().map(|(place, _)| place.address);
        let endpoint = [10, 244, 1, u8::try_from(frontends.len()).unwrap()].into();
        let port = 32_000 + u16::try_from(frontends.len()).unwrap();
        table(
            &Config::default(),
            frontends.iter().map(|(place, frontend)| (place, frontend)),
            addresses,
            [endpoint],
            [port],
        )
    }

    fn open() -> Frontend {
        Frontend {
            endpoints: Endpoints::Some,
            source_ranges: None,
            inside: None,
            ..frontend(0)
        }
    }

    fn stays(own: &[IpAddr]) -> Surplus {
        let own = own.iter().copied().collect();
        Surplus::Stays { own: Arc::new(own) }
    }

    #[test]
    fn the_machines_own_addresses_do_not_stay() {
        let there = rules(&[(1, open()), (2, open())]);
        let mut seen = there.clone();
        stays(&[place(2).address]).hide(&mut seen, &rules(&[]));
        let addresses = &seen.sets[SERVICE_ADDRESSES.of(Family::V4)].elements;
        let left: Vec<String> = addresses.keys().map(ToString::to_string).collect();
        assert_eq!(left, ["198.51.100.2"]);
    }

    #[test]
    fn what_is_not_known_stays_and_what_is_known_counts() {
        let there = rules(&[(1, frontend(0x8000_0001)), (2, frontend(0x8000_0002))]);
        for known in [frontend(0x8000_0001), frontend(0x8000_0003), open()] {
            let wanted = rules(&[(1, known.clone())]);
            let mut seen = there.clone();
            stays(&[]).hide(&mut seen, &wanted);
            let mut after = there.clone();
            for change in seen.difference(&wanted) {
                after.apply(&change);
            }
            let mut expected = rules(&[(1, known), (2, frontend(0x8000_0002))]);
            // Those that were known before and those that are now.
            let both = rules(&[]);
            for set in [
                super::super::names::HAIRPIN.of(Family::V4),
                super::super::names::HEALTH_CHECK_PORTS,
            ] {
                let elements = [&there, &wanted].map(|table| table.sets[set].elements.clone());
                let of_set = both.sets[set].clone();
                let elements = elements.into_iter().flatten().collect();
                expected.add_set(Set { elements, ..of_set });
            }
            assert_eq!(after, expected);
        }
    }

    #[test]
    fn nothing_is_hidden_that_goes() {
        let there = rules(&[(1, frontend(0x8000_0001))]);
        let mut seen = there.clone();
        Surplus::Goes.hide(&mut seen, &rules(&[]));
        assert_eq!(seen, there);
    }
}
