//! A notation for examples: servers are letters, expected picks a line of letters.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use schedulers::{Balancer, Flavour, Options, Registry, Request, ServerId};

/// The action after a pick.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterPick {
    /// The counts stay as they are.
    Nothing,
    /// The connection is counted as active.
    Active,
}

pub(crate) struct Play {
    pub(crate) balancer: Balancer,
    ids: BTreeMap<char, ServerId>,
    request: Request,
    after_pick: AfterPick,
}

impl Play {
    pub(crate) fn new(scheduler: &str) -> Self {
        Self::with(scheduler, &Options::default())
    }

    pub(crate) fn classic(scheduler: &str) -> Self {
        let options = Options {
            flavour: Flavour::Classic,
            ..Options::default()
        };
        Self::with(scheduler, &options)
    }

    pub(crate) fn with(scheduler: &str, options: &Options) -> Self {
        let scheduler = Registry::kernel().build(scheduler, options).unwrap();
        Self {
            balancer: Balancer::new(scheduler, options),
            ids: BTreeMap::new(),
            request: Request {
                source: [192, 168, 1, 1].into(),
                source_port: 40_000,
                destination: [10, 96, 0, 1].into(),
                destination_port: 80,
                at: Duration::ZERO,
            },
            after_pick: AfterPick::Nothing,
        }
    }

    /// From now on, every pick is counted as an active connection.
    pub(crate) fn counting(mut self) -> Self {
        self.after_pick = AfterPick::Active;
        self
    }

    /// Adds servers, such as `"A=1 B=0"`: A is 10.0.0.1, B is 10.0.0.2 and so on, port 80.
    pub(crate) fn add(mut self, servers: &str) -> Self {
        for (name, weight) in pairs(servers) {
            let host = u8::try_from(u32::from(name) - u32::from('A') + 1).unwrap();
            let address = SocketAddr::new([10, 0, 0, host].into(), 80);
            let id = self.balancer.add(address, weight).unwrap();
            self.ids.insert(name, id);
        }
        self
    }

    pub(crate) fn remove(mut self, name: char) -> Self {
        self.balancer.remove(self.ids[&name]).unwrap();
        self
    }

    /// Sets weights, such as `"A=1 B=0"`.
    pub(crate) fn weigh(mut self, servers: &str) -> Self {
        for (name, weight) in pairs(servers) {
            self.balancer.set_weight(self.ids[&name], weight).unwrap();
        }
        self
    }

    pub(crate) fn overload(mut self, name: char, on: bool) -> Self {
        self.balancer.set_overloaded(self.ids[&name], on).unwrap();
        self
    }

    pub(crate) fn count(mut self, name: char, active: u32, inactive: u32) -> Self {
        let id = self.ids[&name];
        self.balancer.set_connections(id, active, inactive).unwrap();
        self
    }

    pub(crate) fn at(mut self, seconds: u64) -> Self {
        self.request.at = Duration::from_secs(seconds);
        self
    }

    /// Sets the client of the following picks.
    pub(crate) fn from(mut self, source: &str, port: u16) -> Self {
        self.request.source = source.parse().unwrap();
        self.request.source_port = port;
        self
    }

    /// Asserts the next picks, such as `"A B -"`; `|` only separates.
    #[track_caller]
    pub(crate) fn picks(mut self, expected: &str) -> Self {
        let wanted: Vec<char> = expected
            .split_whitespace()
            .filter(|&word| word != "|")
            .map(|word| word.chars().next().unwrap())
            .collect();
        let found: Vec<char> = wanted.iter().map(|_| self.pick()).collect();
        assert_eq!(found, wanted);
        self
    }

    /// Asserts one pick per client address, such as `"10.0.0.1>A 10.0.0.2>B"`.
    #[track_caller]
    pub(crate) fn clients(mut self, expected: &str) -> Self {
        for (source, wanted) in arrows(expected) {
            self.request.source = source;
            assert_eq!(self.pick(), wanted, "client {source}");
        }
        self
    }

    /// Asserts one pick per frontend address, such as `"10.0.0.1>A 10.0.0.2>B"`.
    #[track_caller]
    pub(crate) fn frontends(mut self, expected: &str) -> Self {
        for (destination, wanted) in arrows(expected) {
            self.request.destination = destination;
            assert_eq!(self.pick(), wanted, "destination {destination}");
        }
        self
    }

    pub(crate) fn pick(&mut self) -> char {
        let Some(picked) = self.balancer.pick(&self.request) else {
            return '-';
        };
        if self.after_pick == AfterPick::Active {
            self.balancer.connected(picked).unwrap();
        }
        let (&name, _) = self.ids.iter().find(|&(_, &id)| id == picked).unwrap();
        name
    }
}

fn pairs(text: &str) -> impl Iterator<Item = (char, u32)> {
    text.split_whitespace().map(|pair| {
        let (name, weight) = pair.split_once('=').unwrap();
        (name.chars().next().unwrap(), weight.parse().unwrap())
    })
}

fn arrows(text: &str) -> impl Iterator<Item = (IpAddr, char)> {
    text.split_whitespace().map(|pair| {
        let (address, name) = pair.split_once('>').unwrap();
        (address.parse().unwrap(), name.chars().next().unwrap())
    })
}
