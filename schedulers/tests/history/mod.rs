//! Random histories of a virtual server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use proptest::prelude::*;
use schedulers::{
    Balancer, Flavour, Implementation, Options, Registry, Request, ServerId, Thresholds,
};

/// A change or some picks. A server is given by any number, modulo the number of servers.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Adds a server with one of 40 addresses, which may be in use.
    Add(u8, u32),
    Remove(usize),
    Weight(usize, u32),
    Overload(usize, bool),
    Thresholds(usize, u32, u32),
    Connections(usize, u32, u32),
    Connected(usize),
    Opened(usize),
    Activated(usize),
    Deactivated(usize),
    Disconnected(usize),
    Closed(usize),
    /// Makes this many picks, and counts a connection for each if the flag is set.
    Picks(u8, bool),
    /// Binds a new scheduler.
    Reschedule,
}

fn event(weights: &'static [u32]) -> impl Strategy<Value = Event> {
    let which = any::<usize>;
    let weight = proptest::sample::select(weights);
    let few = 0..6_u32;
    let count = prop_oneof![
        8 => 0..6_u32,
        2 => 0..1000_u32,
        1 => proptest::sample::select(&[
            1 << 22, 1 << 23, 1 << 24, (1 << 31) - 1, 1 << 31, u32::MAX - 1, u32::MAX,
        ][..]),
    ];
    prop_oneof![
        6 => (any::<u8>(), weight.clone()).prop_map(|(host, weight)| Event::Add(host % 40, weight)),
        3 => which().prop_map(Event::Remove),
        5 => (which(), weight).prop_map(|(server, weight)| Event::Weight(server, weight)),
        4 => (which(), any::<bool>()).prop_map(|(server, on)| Event::Overload(server, on)),
        1 => (which(), few.clone(), few)
            .prop_map(|(server, one, other)| Event::Thresholds(server, one, other)),
        4 => (which(), count.clone(), count)
            .prop_map(|(server, active, inactive)| Event::Connections(server, active, inactive)),
        2 => which().prop_map(Event::Connected),
        2 => which().prop_map(Event::Opened),
        1 => which().prop_map(Event::Activated),
        2 => which().prop_map(Event::Deactivated),
        2 => which().prop_map(Event::Disconnected),
        2 => which().prop_map(Event::Closed),
        12 => (1..12_u8, any::<bool>()).prop_map(|(count, stay)| Event::Picks(count, stay)),
        1 => Just(Event::Reschedule),
    ]
}

/// One of the two compared virtual servers, and its servers, including removed ones.
pub(crate) struct Side {
    pub(crate) balancer: Balancer,
    name: &'static str,
    options: Options,
    pub(crate) servers: Vec<ServerId>,
}

impl Side {
    pub(crate) fn new(
        name: &'static str,
        flavour: Flavour,
        implementation: Implementation,
    ) -> Self {
        let options = Options {
            flavour,
            implementation,
            ..Options::default()
        };
        let scheduler = Registry::kernel().build(name, &options).unwrap();
        Self {
            balancer: Balancer::new(scheduler, &options),
            name,
            options,
            servers: Vec::new(),
        }
    }

    /// Applies an event and returns its picks.
    pub(crate) fn play(&mut self, event: &Event) -> Vec<Option<ServerId>> {
        let balancer = &mut self.balancer;
        let index = |number: usize| number.checked_rem(self.servers.len());
        let server = |number: usize| Some(self.servers[index(number)?]);
        // An event that is impossible, such as removing a removed server, is an error for both sides.
        let _ = match *event {
            Event::Add(host, weight) => {
                let address = IpAddr::from(Ipv4Addr::from(u32::from(host)));
                let added = balancer.add(SocketAddr::new(address, 80), weight);
                if let Ok(id) = added
                    && !self.servers.contains(&id)
                {
                    self.servers.push(id);
                }
                added.map(|_| ())
            }
            Event::Remove(number) => server(number).map_or(Ok(()), |id| balancer.remove(id)),
            Event::Weight(number, weight) => {
                server(number).map_or(Ok(()), |id| balancer.set_weight(id, weight))
            }
            Event::Overload(number, on) => {
                server(number).map_or(Ok(()), |id| balancer.set_overloaded(id, on))
            }
            Event::Thresholds(number, one, other) => server(number).map_or(Ok(()), |id| {
                let thresholds = Thresholds::new(one.max(other), one.min(other))?;
                balancer.set_thresholds(id, thresholds)
            }),
            Event::Connections(number, active, inactive) => {
                server(number).map_or(Ok(()), |id| balancer.set_connections(id, active, inactive))
            }
            Event::Connected(number) => server(number).map_or(Ok(()), |id| balancer.connected(id)),
            Event::Opened(number) => server(number).map_or(Ok(()), |id| balancer.opened(id)),
            Event::Activated(number) => server(number).map_or(Ok(()), |id| balancer.activated(id)),
            Event::Deactivated(number) => {
                server(number).map_or(Ok(()), |id| balancer.deactivated(id))
            }
            Event::Disconnected(number) => {
                server(number).map_or(Ok(()), |id| balancer.disconnected(id))
            }
            Event::Closed(number) => server(number).map_or(Ok(()), |id| balancer.closed(id)),
            Event::Picks(count, stay) => return self.picks(count, stay),
            Event::Reschedule => {
                let scheduler = Registry::kernel().build(self.name, &self.options).unwrap();
                balancer.reschedule(scheduler, Duration::ZERO)
            }
        };
        Vec::new()
    }

    fn picks(&mut self, count: u8, stay: bool) -> Vec<Option<ServerId>> {
        let request = Request {
            source: [192, 0, 2, 1].into(),
            source_port: 1,
            destination: [192, 0, 2, 2].into(),
            destination_port: 80,
            at: Duration::ZERO,
        };
        (0..count)
            .map(|_| {
                let picked = self.balancer.pick(&request);
                if let Some(id) = picked
                    && stay
                {
                    self.balancer.connected(id).unwrap();
                }
                picked
            })
            .collect()
    }
}

pub(crate) fn flavour() -> impl Strategy<Value = Flavour> {
    prop_oneof![Just(Flavour::Total), Just(Flavour::Classic)]
}

pub(crate) fn history(weights: &'static [u32]) -> impl Strategy<Value = Vec<Event>> {
    proptest::collection::vec(event(weights), 1..1000)
}
