//! Explains the present connection of a client.

use std::net::SocketAddr;

use super::finding::{LEFT_BEHIND, NO_CONNECTION};
use super::step::{Answering, Explanation, Outcome, Seen, Step};
use crate::cluster::model::Protocol;
use crate::dataplane::conntrack::Flow;
use crate::dataplane::ipvs::connections::Connection;
use crate::plan::frontend::Frontend;

/// What the kernel has of a client's connection to a frontend.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) client: SocketAddr,
    pub(crate) frontend: Frontend,
    /// Its entry in connection tracking.
    pub(crate) flow: Option<Flow>,
    /// Its entry in IPVS.
    pub(crate) connection: Option<Connection>,
}

/// What the plan and the kernel say about the endpoint of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It accepts new connections.
    Accepts { weight: u32 },
    /// It gets no new connections, and keeps this one for as many seconds, if that is known.
    Drains { seconds: Option<u64> },
    /// Neither the plan nor the kernel has it.
    Gone,
    /// The frontend is no Service's.
    NoService,
}

impl Held {
    /// Groups what the kernel has by frontends.
    pub(crate) fn all(
        client: SocketAddr,
        flows: Vec<Flow>,
        connections: Vec<Connection>,
    ) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for connection in connections {
            all.push(Self {
                client,
                frontend: Frontend {
                    protocol: connection.protocol,
                    address: connection.frontend.ip(),
                    port: connection.frontend.port(),
                },
                flow: None,
                connection: Some(connection),
            });
        }
        for flow in flows {
            let frontend = flow.frontend();
            match all.iter_mut().find(|it| it.frontend == frontend) {
                Some(known) => known.flow = Some(flow),
                None => all.push(Self {
                    client,
                    frontend,
                    flow: Some(flow),
                    connection: None,
                }),
            }
        }
        all
    }

    /// Returns the endpoint that has the connection, if it is one through a Service.
    pub(crate) fn endpoint(&self) -> Option<SocketAddr> {
        let of_flow = || {
            let flow = self.flow.as_ref()?;
            (flow.reply.source != flow.original.destination).then_some(flow.reply.source)
        };
        self.connection
            .as_ref()
            .map(|it| it.endpoint)
            .or_else(of_flow)
    }

    /// Explains the connection. `owner` is the Service of the frontend.
    pub(crate) fn explain(&self, owner: Option<&str>, standing: &Standing) -> Explanation {
        let mut steps = Vec::new();
        steps.push(match owner {
            Some(owner) => {
                let what = format!("{} is a frontend of Service {owner}", self.frontend);
                Step::new(what, "", Seen::Plan)
            }
            None => {
                let what = format!("{} is no frontend of a Service of this node", self.frontend);
                Step::new(what, "", Seen::Plan)
            }
        });
        if let Some(connection) = &self.connection {
            let what = format!("IPVS has the connection: {}", ipvs_line(connection));
            steps.push(Step::new(what, "/proc/net/ip_vs_conn", Seen::Kernel));
        }
        let tracked = "the kernel's table of flows";
        steps.push(match &self.flow {
            Some(flow) => {
                let what = format!("connection tracking has it: {}", flow_line(flow));
                Step::new(what, tracked, Seen::Kernel)
            }
            None => Step::new(
                "connection tracking does not have it",
                tracked,
                Seen::Kernel,
            ),
        });
        let endpoint = self.endpoint();
        steps.extend(endpoint.map(|it| self.standing(it, standing)));
        let answering = endpoint.map(|address| Answering {
            address,
            masqueraded: self.is_masqueraded(),
        });
        let mut explanation = Explanation::new(
            format!(
                "{} of {} to {}",
                self.frontend.protocol,
                self.client,
                self.frontend.socket()
            ),
            steps,
            answering.into_iter().collect(),
        );
        if explanation.verdict.outcome == Outcome::Answered {
            explanation.verdict.text = match endpoint {
                Some(endpoint) => {
                    let drains = match standing {
                        Standing::Drains { .. } => ", which drains",
                        _ => "",
                    };
                    format!("connected to {endpoint}{drains}; {}", self.left())
                }
                None => format!("connected without an endpoint; {}", self.left()),
            };
        }
        explanation
    }

    fn standing(&self, endpoint: SocketAddr, standing: &Standing) -> Step {
        match standing {
            Standing::Accepts { weight } => {
                let what = format!("{endpoint} is an endpoint of the plan, weight {weight}");
                Step::new(what, "", Seen::Plan)
            }
            Standing::Drains { seconds } => {
                let what = match seconds {
                    Some(seconds) => {
                        format!("{endpoint} drains: this connection may stay for {seconds} s")
                    }
                    None => format!("{endpoint} drains: it gets no new connections"),
                };
                let because = "the plan lacks it, or it has weight 0; --drain-timeout";
                Step::new(what, because, Seen::Kernel)
            }
            Standing::NoService => Step::new(
                format!("{endpoint} is not chosen by a Service"),
                "another program translates it",
                Seen::Plan,
            ),
            Standing::Gone => {
                let what =
                    format!("{endpoint} is no endpoint any more: the connection leads nowhere");
                let because = "neither the plan nor the kernel's table has it";
                let next = format!(
                    "conntrack --delete --proto {} --src {} --sport {}",
                    self.frontend.protocol.to_string().to_lowercase(),
                    self.client.ip(),
                    self.client.port()
                );
                Step::new(what, because, Seen::Kernel).finding(&LEFT_BEHIND, Outcome::Dropped, next)
            }
        }
    }

    fn is_masqueraded(&self) -> bool {
        let flow = self.flow.as_ref();
        flow.is_some_and(|flow| flow.reply.destination != flow.original.source)
    }

    /// Returns what ends the connection if it is idle.
    fn left(&self) -> String {
        let of_ipvs = self.connection.as_ref().map(|it| it.seconds_left);
        let of_flow = self.flow.as_ref().map(|it| u64::from(it.seconds_left));
        match of_ipvs.into_iter().chain(of_flow).min() {
            Some(seconds) => format!("idle, it is forgotten in {seconds} s"),
            None => String::new(),
        }
    }
}

/// Returns the explanation for a client without any connection.
pub(crate) fn none(client: SocketAddr, protocols: &[Protocol]) -> Explanation {
    let names: Vec<String> = protocols.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    let what = format!("this node has no {names} connection of {client}");
    let because =
        "neither IPVS nor connection tracking has one: it was never here, or it was idle too long";
    let next = format!("ipvs-proxier explain --watch 10 {} TO", client.ip());
    let step = Step::new(what, because, Seen::Kernel);
    let step = step.finding(&NO_CONNECTION, Outcome::Unknown, next);
    Explanation::new(format!("connections of {client}"), vec![step], Vec::new())
}

/// Returns the line of an entry of IPVS.
pub(crate) fn ipvs_line(it: &Connection) -> String {
    format!(
        "{} to {} at {}, {}, {} s left",
        it.client, it.frontend, it.endpoint, it.state, it.seconds_left
    )
}

/// Returns the line of an entry of connection tracking.
pub(crate) fn flow_line(it: &Flow) -> String {
    let state = match (it.is_answered, it.is_established) {
        (false, _) => "not answered",
        (true, true) => "established",
        (true, false) => "answered",
    };
    let seen = match it.reply.destination == it.original.source {
        true => String::new(),
        false => format!(" (the endpoint sees {})", it.reply.destination),
    };
    format!(
        "{} to {} at {}{seen}, {state}, {} s left",
        it.original.source, it.original.destination, it.reply.source, it.seconds_left
    )
}
