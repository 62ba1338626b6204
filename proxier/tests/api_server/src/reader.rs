//! A client that reads the large lists once.

use std::error::Error;
use std::path::Path;

use http::Request;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// The paths of Services and EndpointSlices.
const PATHS: [&str; 2] = [
    "/api/v1/services",
    "/apis/discovery.k8s.io/v1/endpointslices",
];

/// The parameters of a list that is streamed, and whose watch ends after a second. The selectors are those of
/// kube-proxy 1.36.
const STREAM: &str = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                      &allowWatchBookmarks=true&timeoutSeconds=1\
                      &labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
                      %2C%21service.kubernetes.io%2Fheadless";

/// Reads the lists of Services and EndpointSlices at once, as a node does at its start.
///
/// # Errors
/// If `kubeconfig` cannot be used, or a response breaks off. The status of a response is ignored.
pub fn read_lists(kubeconfig: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let client = client(kubeconfig).await?;
        let [services, slices] = PATHS.map(|path| read(&client, path));
        tokio::try_join!(services, slices)?;
        Ok(())
    })
}

/// Returns a client that a kubeconfig file describes.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client, Box<dyn Error + Send + Sync>> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(file, &options).await?;
    Ok(Client::try_from(config)?)
}

async fn read(client: &Client, path: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let accept = "application/vnd.kubernetes.protobuf;stream=watch";
    let request = Request::get(format!("{path}?{STREAM}")).header("Accept", accept);
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
