//! Security schemes.

use serde_json::{Value, json};

/// A security scheme ([`OpenApi::security_scheme`](crate::OpenApi::security_scheme)).
#[derive(Clone, Debug, PartialEq)]
pub struct SecurityScheme(pub(crate) Value);

impl SecurityScheme {
    /// A token in `Authorization: Bearer`. `format` describes it, such as `JWT`, and may be empty.
    #[must_use]
    pub fn bearer(format: &str) -> Self {
        let mut scheme = json!({ "type": "http", "scheme": "bearer" });
        if !format.is_empty() {
            scheme["bearerFormat"] = json!(format);
        }
        Self(scheme)
    }

    /// A user name and password in `Authorization: Basic`.
    #[must_use]
    pub fn basic() -> Self {
        Self(json!({ "type": "http", "scheme": "basic" }))
    }

    /// A key in a header field.
    #[must_use]
    pub fn api_key_header(name: &str) -> Self {
        Self(json!({ "type": "apiKey", "in": "header", "name": name }))
    }

    /// A key in the query.
    #[must_use]
    pub fn api_key_query(name: &str) -> Self {
        Self(json!({ "type": "apiKey", "in": "query", "name": name }))
    }

    /// A key in a cookie, such as that of a session.
    #[must_use]
    pub fn api_key_cookie(name: &str) -> Self {
        Self(json!({ "type": "apiKey", "in": "cookie", "name": name }))
    }

    /// A client certificate.
    #[must_use]
    pub fn mutual_tls() -> Self {
        Self(json!({ "type": "mutualTLS" }))
    }

    /// OpenID Connect, with the URL of its discovery document.
    #[must_use]
    pub fn open_id_connect(url: &str) -> Self {
        Self(json!({ "type": "openIdConnect", "openIdConnectUrl": url }))
    }

    /// OAuth 2 with an authorization code, and the available scopes with their descriptions.
    #[must_use]
    pub fn oauth2_authorization_code(
        authorization_url: &str,
        token_url: &str,
        scopes: &[(&str, &str)],
    ) -> Self {
        let scopes: serde_json::Map<_, _> =
            scopes.iter().map(|(name, text)| ((*name).to_owned(), json!(text))).collect();
        Self(json!({
            "type": "oauth2",
            "flows": { "authorizationCode": {
                "authorizationUrl": authorization_url,
                "tokenUrl": token_url,
                "scopes": scopes,
            } },
        }))
    }

    /// Any other scheme, as an OpenAPI object.
    #[must_use]
    pub fn raw(scheme: Value) -> Self {
        Self(scheme)
    }

    /// Sets the description, in Markdown.
    #[must_use]
    pub fn description(mut self, text: &str) -> Self {
        self.0["description"] = json!(text);
        self
    }
}
