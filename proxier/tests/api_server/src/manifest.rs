//! Objects for tests, written as a chain of calls.
//!
//! ```
//! use api_server::Manifest;
//!
//! let web = Manifest::service("web").cluster_ip("10.96.0.1").port("http", "TCP", 80);
//! let slice = Manifest::slice_of("web").port("http", "TCP", 8080).endpoint("10.244.1.2");
//! let text = Manifest::documents([&web, &slice]);
//! assert_eq!(text.lines().count(), 4);
//! ```

use serde_json::{Value, json};

/// An object of the API. Each call returns it with one more field.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest(Value);

impl Manifest {
    /// Returns a Service of the default namespace, of type `ClusterIP` and without an address.
    pub fn service(name: &str) -> Self {
        let mut service = Self::of_kind("Service", name);
        service.0["spec"] = json!({});
        service
    }

    /// Returns an IPv4 EndpointSlice with the name of its Service, without ports and endpoints.
    pub fn slice_of(service: &str) -> Self {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": service},
            "addressType": "IPv4",
            "ports": [],
            "endpoints": [],
        });
        Self(slice).label("kubernetes.io/service-name", service)
    }

    /// Returns a Node without addresses.
    pub fn node(name: &str) -> Self {
        Self::of_kind("Node", name)
    }

    /// Returns an object of API version `v1` that has only a kind and a name.
    pub fn of_kind(kind: &str, name: &str) -> Self {
        Self(json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}))
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][name] = json!(value);
        self
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, name: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][name] = json!(value);
        self
    }

    /// Sets a field of `spec`, such as `ipFamilies`.
    #[must_use]
    pub fn spec(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["spec"][field] = value.into();
        self
    }

    /// Sets the type of a Service, such as `LoadBalancer`.
    #[must_use]
    pub fn of_type(self, name: &str) -> Self {
        self.spec("type", name)
    }

    /// Sets the cluster IP of a Service.
    #[must_use]
    pub fn cluster_ip(self, address: &str) -> Self {
        self.spec("clusterIP", address)
    }

    /// Adds a range of clients that a load balancer admits.
    #[must_use]
    pub fn source_range(mut self, range: &str) -> Self {
        push(
            &mut self.0["spec"]["loadBalancerSourceRanges"],
            json!(range),
        );
        self
    }

    /// Adds an address of a load balancer.
    #[must_use]
    pub fn ingress(mut self, address: &str) -> Self {
        let list = &mut self.0["status"]["loadBalancer"]["ingress"];
        push(list, json!({"ip": address}));
        self
    }

    /// Adds a port of a Service or of an EndpointSlice.
    #[must_use]
    pub fn port(mut self, name: &str, protocol: &str, number: u16) -> Self {
        let list = match self.0["kind"].as_str() {
            Some("Service") => &mut self.0["spec"]["ports"],
            _ => &mut self.0["ports"],
        };
        push(
            list,
            json!({"name": name, "protocol": protocol, "port": number}),
        );
        self
    }

    /// Gives the last port of a Service this node port.
    ///
    /// # Panics
    /// If the Service has no port.
    #[must_use]
    pub fn node_port(mut self, number: u16) -> Self {
        let ports = self.0["spec"]["ports"].as_array_mut();
        let last = ports.and_then(|ports| ports.last_mut());
        last.expect("a port")["nodePort"] = json!(number);
        self
    }

    /// Adds a ready endpoint with this address.
    #[must_use]
    pub fn endpoint(self, address: &str) -> Self {
        self.endpoint_with(address, json!({}))
    }

    /// Adds an endpoint with this address and these other fields.
    ///
    /// # Panics
    /// If `fields` is no object.
    #[must_use]
    pub fn endpoint_with(mut self, address: &str, mut fields: Value) -> Self {
        fields["addresses"] = json!([address]);
        push(&mut self.0["endpoints"], fields);
        self
    }

    /// Adds an internal address of a Node.
    #[must_use]
    pub fn address(mut self, address: &str) -> Self {
        let list = &mut self.0["status"]["addresses"];
        push(list, json!({"type": "InternalIP", "address": address}));
        self
    }

    /// Returns the object as a document of a YAML stream. It is one line of JSON, which is YAML too.
    pub fn yaml(&self) -> String {
        format!("---\n{}\n", self.0)
    }

    /// Returns a YAML stream of these objects.
    pub fn documents<'a>(manifests: impl IntoIterator<Item = &'a Self>) -> String {
        manifests.into_iter().map(Self::yaml).collect()
    }
}

/// Adds an item to a list; creates the list if it is missing.
fn push(list: &mut Value, item: Value) {
    match list.as_array_mut() {
        Some(items) => items.push(item),
        None => *list = json!([item]),
    }
}
