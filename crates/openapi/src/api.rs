//! A scope whose routes are all described.

use crate::operation::Operation;
use crate::operation_handler::{DescribeExt, OperationHandler, operation_defaults};
use http::Method;
use peregrine_web::Scope;
use peregrine_web::guard::Guard;
use peregrine_web::handler::{Handler, Signature};
use peregrine_web::middleware::{IntoMiddleware, Middleware};
use std::fmt;

/// A scope in which every route describes itself; other handlers do not compile. Created by
/// [`api_scope`]. The type parameters `Args` and `Via` of its methods are always inferred
/// ([`Handler`]).
#[doc(alias = "ApiRouter")]
pub struct ApiScope(Scope);

/// Describes all routes that `build` adds. Use it with [`App::scope`](peregrine_web::App::scope),
/// or without a prefix with [`App::register`](peregrine_web::App::register).
///
/// ```
/// use peregrine::openapi::{ApiScope, DescribeExt, OpenApiExt, OpenApi, api_scope};
/// use peregrine::prelude::*;
///
/// fn birds(api: ApiScope) -> ApiScope {
///     api.tag("birds")
///         .get("/", || "all of them")
///         .get("/{id}", |Path(id): Path<u32>| format!("bird {id}"))
///         .delete("/{id}", (|Path(_): Path<u32>| ()).describe(|it| it.deprecated()))
/// }
///
/// let app = App::new().scope("/birds", api_scope(birds)).register(OpenApi::new("Birds", "1.0"));
/// let document = app.openapi()?;
/// assert_eq!(document.operation("GET", "/birds/{id}").unwrap()["tags"][0], "birds");
/// # Ok::<(), peregrine::openapi::OpenApiError>(())
/// ```
#[doc(alias = "api_route")]
pub fn api_scope(build: impl FnOnce(ApiScope) -> ApiScope) -> impl FnOnce(Scope) -> Scope {
    move |scope| build(ApiScope(scope)).0
}

macro_rules! methods {
    ($($name:ident $METHOD:ident;)*) => {
        $(
            #[doc = concat!("Handles and describes ", stringify!($METHOD), " requests for `pattern`.")]
            #[track_caller]
            #[must_use]
            pub fn $name<Args, Via, H>(self, pattern: &str, handler: H) -> Self
            where
                H: Signature<Args> + Handler<Args, Via> + OperationHandler<Args> + 'static,
                (Args, Via): 'static,
            {
                self.on(Method::$METHOD, pattern, handler)
            }
        )*
    };
}

impl ApiScope {
    methods! {
        get GET;
        post POST;
        put PUT;
        delete DELETE;
        patch PATCH;
        head HEAD;
        options OPTIONS;
    }

    /// Handles and describes requests for `pattern` with `method`.
    #[track_caller]
    #[must_use]
    pub fn on<Args, Via, H>(self, method: Method, pattern: &str, handler: H) -> Self
    where
        H: Signature<Args> + Handler<Args, Via> + OperationHandler<Args> + 'static,
        (Args, Via): 'static,
    {
        Self(self.0.on(method, pattern, handler.described()))
    }

    /// Adds a nested scope with a prefix.
    #[doc(alias = "nest")]
    #[track_caller]
    #[must_use]
    pub fn scope(self, prefix: &str, build: impl FnOnce(Self) -> Self) -> Self {
        Self(self.0.scope(prefix, api_scope(build)))
    }

    /// Adds the routes of a function, such as one in another file. Tags, middleware and other
    /// settings that the function adds apply only to its own routes.
    ///
    /// ```
    /// # use peregrine::openapi::{ApiScope, OpenApiExt, OpenApi, api_scope};
    /// # use peregrine::prelude::*;
    /// fn birds(api: ApiScope) -> ApiScope {
    ///     api.tag("birds").get("/birds", || "all of them")
    /// }
    /// fn eggs(api: ApiScope) -> ApiScope {
    ///     api.tag("eggs").get("/eggs", || "none")
    /// }
    ///
    /// let all = api_scope(|api| api.register(birds).register(eggs));
    /// let document = App::new().register(all).register(OpenApi::new("Birds", "1.0")).openapi()?;
    /// assert_eq!(document.operation("GET", "/eggs").unwrap()["tags"][0], "eggs");
    /// # Ok::<(), peregrine::openapi::OpenApiError>(())
    /// ```
    #[doc(alias = "add")]
    #[track_caller]
    #[must_use]
    pub fn register(self, build: impl FnOnce(Self) -> Self) -> Self {
        self.scope("", build)
    }

    /// Adds routes that need no description, or describe themselves in another way.
    #[must_use]
    pub fn undescribed(self, build: impl FnOnce(Scope) -> Scope) -> Self {
        Self(build(self.0))
    }

    /// Runs `middleware` around subsequent routes ([`Scope::wrap`]).
    #[doc(alias = "layer")]
    #[doc(alias = "middleware")]
    #[track_caller]
    #[must_use]
    pub fn wrap<Args, M>(self, middleware: M) -> Self
    where
        M: IntoMiddleware<Args, Middleware: Middleware + 'static>,
    {
        Self(self.0.wrap(middleware))
    }

    /// Restricts subsequent routes to requests that `guard` accepts ([`Scope::guard`]).
    #[doc(alias = "when")]
    #[doc(alias = "predicate")]
    #[must_use]
    pub fn guard(self, guard: impl Guard + 'static) -> Self {
        Self(self.0.guard(guard))
    }

    /// Describes all subsequent routes here and in nested scopes, however they are added. Their own
    /// descriptions take precedence.
    #[must_use]
    pub fn operation_defaults(
        self,
        edit: impl for<'a> Fn(&'a mut Operation) -> &'a mut Operation + 'static,
    ) -> Self {
        Self(self.0.with_metadata(operation_defaults(edit)))
    }

    /// Adds a tag to subsequent routes.
    #[must_use]
    pub fn tag(self, name: &str) -> Self {
        let name = name.to_owned();
        self.operation_defaults(move |it| it.tag(&*name))
    }

    /// Makes this scheme the only security requirement of subsequent routes.
    #[must_use]
    pub fn security(self, scheme: &str) -> Self {
        let scheme = scheme.to_owned();
        self.operation_defaults(move |it| it.set_security(&scheme))
    }

    /// Removes the security requirements of subsequent routes.
    #[must_use]
    pub fn no_security(self) -> Self {
        self.operation_defaults(Operation::no_security)
    }
}

impl fmt::Debug for ApiScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ApiScope").field(&self.0).finish()
    }
}
