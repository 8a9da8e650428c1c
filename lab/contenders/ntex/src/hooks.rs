//! The middleware around the events route: ntex has no middleware functions, so it is a service.

use ntex::http::header::{HeaderName, HeaderValue};
use ntex::web::{WebRequest, WebResponse};
use ntex::{Middleware, Service, ServiceCtx, SharedCfg};

use crate::model::HookState;

/// Leaves state with the request and sets a header of the response.
pub struct Hooks;

impl<S> Middleware<S, SharedCfg> for Hooks {
    type Service = HooksService<S>;

    fn create(&self, service: S, _: SharedCfg) -> HooksService<S> {
        HooksService { service }
    }
}

pub struct HooksService<S> {
    service: S,
}

impl<S, E> Service<WebRequest<E>> for HooksService<S>
where
    S: Service<WebRequest<E>, Response = WebResponse>,
{
    type Response = WebResponse;
    type Error = S::Error;

    ntex::forward_ready!(service);
    ntex::forward_poll!(service);
    ntex::forward_shutdown!(service);

    async fn call(
        &self,
        request: WebRequest<E>,
        context: ServiceCtx<'_, Self>,
    ) -> Result<WebResponse, S::Error> {
        request.extensions_mut().insert(HookState { after: "done" });
        let mut response = context.call(&self.service, request).await?;
        response
            .headers_mut()
            .insert(HeaderName::from_static("x-benchmark-after"), HeaderValue::from_static("done"));
        Ok(response)
    }
}
