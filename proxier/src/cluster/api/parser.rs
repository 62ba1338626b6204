//! Parsing of an object's fields.

use std::collections::HashSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

use super::address::{parse_address, parse_network};
use super::metadata::is_label;
use super::scalar::Scalar;
use crate::cluster::model::{Cidr, ObjectName, Protocol};
use crate::cluster::problem::Problem;
use crate::cluster::store::{Interner, Parsed};

/// The maximum number of problems that are listed for one object.
const MAX_PROBLEMS: usize = 100;

/// Parses the fields of one object and collects their problems.
///
/// The parameter `instead` of the methods says what replaces a bad value. The object's name and a field's
/// path are formatted only for a Problem: a large cluster has 100,000 valid endpoints.
pub(super) struct Parser<'a> {
    kind: &'a str,
    name: ObjectName,
    problems: Vec<Problem>,
    pub(super) interner: &'a mut Interner,
}

impl<'a> Parser<'a> {
    /// Parses the object `name` with `read`.
    pub(super) fn parse<T>(
        kind: &'a str,
        name: ObjectName,
        interner: &'a mut Interner,
        read: impl FnOnce(&ObjectName, &mut Self) -> Option<T>,
    ) -> Parsed<T> {
        let name = interner.name(name);
        let mut parser = Self {
            kind,
            name: name.clone(),
            problems: Vec::new(),
            interner,
        };
        Parsed {
            object: read(&name, &mut parser),
            name,
            problems: parser.problems,
            changed: None,
        }
    }

    /// Returns the shared form of `text`.
    pub(super) fn intern(&mut self, text: &str) -> Arc<str> {
        self.interner.intern(text)
    }

    /// Adds a Problem with `field`.
    pub(super) fn problem(
        &mut self,
        field: impl Display,
        value: impl Display,
        message: impl Into<String>,
    ) {
        let object = format!("{} {}", self.kind, self.name);
        // A list without limit would let a hostile object fill memory and logs.
        let problem = match self.problems.len() {
            0..MAX_PROBLEMS => Problem::new(object, field.to_string(), value, message),
            MAX_PROBLEMS => {
                let message = "has more problems, which are not listed";
                Problem::new(object, "", "", message)
            }
            _ => return,
        };
        self.problems.push(problem);
    }

    /// Parses an address. If `refuse` returns a reason against it, the address is a Problem.
    pub(super) fn address(
        &mut self,
        field: impl Display,
        value: &Scalar<'_>,
        refuse: fn(IpAddr) -> Option<&'static str>,
        instead: &str,
    ) -> Option<IpAddr> {
        let Some(address) = value.as_str().and_then(parse_address) else {
            self.problem(field, value, format!("is not an IP address; {instead}"));
            return None;
        };
        let is_permitted = address.is_loopback() && self.interner.permits_loopback;
        if !is_permitted && let Some(reason) = refuse(address) {
            self.problem(field, value, format!("{reason}; {instead}"));
            return None;
        }
        Some(address)
    }

    /// Parses a network.
    pub(super) fn network(&mut self, field: impl Display, value: &Scalar<'_>) -> Option<Cidr> {
        let network = value.as_str().and_then(parse_network);
        if network.is_none() {
            self.problem(field, value, "is not a network in CIDR form; ignored");
        }
        network
    }

    /// Parses a list of networks, without duplicates.
    pub(super) fn networks(&mut self, field: &str, list: &[Scalar<'_>]) -> Vec<Cidr> {
        let mut seen = HashSet::new();
        let list = list.iter().enumerate();
        list.filter_map(|(index, text)| self.network(format_args!("{field}[{index}]"), text))
            .filter(|&network| seen.insert(network))
            .collect()
    }

    /// Parses a port from 1 to 65535.
    pub(super) fn port(
        &mut self,
        field: impl Display,
        value: &Scalar<'_>,
        instead: &str,
    ) -> Option<u16> {
        // A string is invalid, as it is for the API server.
        let port = match value {
            Scalar::Integer(number) => u16::try_from(*number).ok().filter(|&port| port != 0),
            _ => None,
        };
        if port.is_none() {
            self.problem(field, value, format!("is not a port number; {instead}"));
        }
        port
    }

    /// Parses a port's name, which is empty if absent.
    pub(super) fn port_name<'t>(
        &mut self,
        field: impl Display,
        value: &'t Scalar<'_>,
        instead: &str,
    ) -> Option<&'t str> {
        if value.is_blank() {
            return Some("");
        }
        let name = value.as_str().filter(|name| is_label(name));
        if name.is_none() {
            self.problem(field, value, format!("is not a DNS label; {instead}"));
        }
        name
    }

    /// Parses a protocol, which is TCP if absent.
    pub(super) fn protocol(
        &mut self,
        field: impl Display,
        value: &Scalar<'_>,
        instead: &str,
    ) -> Option<Protocol> {
        match value {
            Scalar::Absent => return Some(Protocol::Tcp),
            Scalar::Text(text) => match &**text {
                "" | "TCP" => return Some(Protocol::Tcp),
                "UDP" => return Some(Protocol::Udp),
                "SCTP" => return Some(Protocol::Sctp),
                _ => {}
            },
            _ => {}
        }
        self.problem(field, value, format!("is not TCP, UDP or SCTP; {instead}"));
        None
    }

    /// Parses a boolean. Returns `default` if it is absent or of another type.
    pub(super) fn flag(&mut self, field: impl Display, value: &Scalar<'_>, default: bool) -> bool {
        match value {
            Scalar::Absent => default,
            Scalar::Boolean(flag) => *flag,
            _ => {
                self.problem(
                    field,
                    value,
                    format!("is not true or false; {default} is used"),
                );
                default
            }
        }
    }

    /// Parses one of `words`. Returns the first if the value is absent or none of them.
    pub(super) fn choice<T: Copy, const N: usize>(
        &mut self,
        field: impl Display,
        value: &Scalar<'_>,
        words: [(&str, T); N],
    ) -> T {
        let (default_word, default) = words[0];
        if value.is_blank() {
            return default;
        }
        let known = value
            .as_str()
            .and_then(|text| words.iter().find(|(word, _)| *word == text));
        match known {
            Some((_, choice)) => *choice,
            None => {
                let list = words.map(|(word, _)| word).join(", ");
                self.problem(
                    field,
                    value,
                    format!("is not one of {list}; {default_word} is used"),
                );
                default
            }
        }
    }
}
