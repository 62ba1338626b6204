//! A client that reads the large lists once.

use std::error::Error;
use std::path::Path;

use http::Request;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// The lists of Services and EndpointSlices, with the selectors of kube-proxy 1.36.
const LISTS: [&str; 2] = [
    "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
     %2C%21service.kubernetes.io%2Fheadless",
    "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
     %2C%21service.kubernetes.io%2Fheadless",
];

/// The parameters of a list that is streamed, and whose watch ends after a second.
const STREAM: &str = "&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                      &allowWatchBookmarks=true&timeoutSeconds=1";

/// Reads the lists of Services and EndpointSlices at once, as a node does at its start.
///
/// # Errors
/// If `kubeconfig` cannot be used, or a response breaks off. The status of a response is ignored.
pub fn read_lists(kubeconfig: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let file = Kubeconfig::read_from(kubeconfig)?;
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file, &options).await?;
        let client = Client::try_from(config)?;
        let [services, slices] = LISTS.map(|list| read(&client, list));
        tokio::try_join!(services, slices)?;
        Ok(())
    })
}

async fn read(client: &Client, list: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let accept = "application/vnd.kubernetes.protobuf;stream=watch";
    let request = Request::get(format!("{list}{STREAM}")).header("Accept", accept);
    let response = client.send(request.body(Body::empty())?).await?;
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ApiServer;

    #[test]
    fn both_lists_are_streamed_to_their_end() {
        let server = ApiServer::start();
        server.apply(json!({"kind": "Service", "metadata": {"namespace": "a", "name": "b"}}));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        let config = json!({
            "clusters": [{"name": "a", "cluster": {"server": server.url()}}],
            "users": [{"name": "a", "user": {}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "current-context": "a",
        });
        std::fs::write(&file, config.to_string()).unwrap();

        read_lists(&file).unwrap();

        let mut streamed: Vec<String> = server
            .requests()
            .into_iter()
            .filter(|request| request.query.contains_key("sendInitialEvents"))
            .map(|request| request.path)
            .collect();
        streamed.sort();
        assert_eq!(
            streamed,
            [
                "/api/v1/services",
                "/apis/discovery.k8s.io/v1/endpointslices"
            ]
        );
        assert!(server.last_list().is_some());
    }
}
