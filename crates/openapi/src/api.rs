//! A scope whose routes are all described.

use crate::handler::{Describe, DescribeExt, for_all};
use crate::operation::Operation;
use http::Method;
use peregrine_web::Scope;
use peregrine_web::guard::Guard;
use peregrine_web::handler::{Handler, Signature};
use peregrine_web::middleware::{IntoMiddleware, Middleware};
use std::fmt;

/// A scope in which every route describes itself: a handler that cannot does not compile. Made by [`describe`].
pub struct Api(Scope);

/// Describes all routes that `build` adds: for [`App::scope`](peregrine_web::App::scope), or without a prefix for
/// [`App::add`](peregrine_web::App::add).
///
/// ```
/// use peregrine::openapi::{Api, DescribeExt, HasOpenApi, OpenApi, describe};
/// use peregrine::prelude::*;
///
/// fn birds(api: Api) -> Api {
///     api.tag("birds")
///         .get("/", || "all of them")
///         .get("/{id}", |Path(id): Path<u32>| format!("bird {id}"))
///         .delete("/{id}", (|Path(_): Path<u32>| ()).describe(|it| it.deprecated()))
/// }
///
/// let app = App::new().scope("/birds", describe(birds)).add(OpenApi::new("Birds", "1.0"));
/// let document = app.openapi()?;
/// assert_eq!(document.operation("GET", "/birds/{id}").unwrap()["tags"][0], "birds");
/// # Ok::<(), peregrine::openapi::OpenApiError>(())
/// ```
pub fn describe(build: impl FnOnce(Api) -> Api) -> impl FnOnce(Scope) -> Scope {
    move |scope| build(Api(scope)).0
}

macro_rules! methods {
    ($($name:ident $METHOD:ident;)*) => {
        $(
            #[doc = concat!("Answers and describes ", stringify!($METHOD), " requests for `pattern`.")]
            #[track_caller]
            #[must_use]
            pub fn $name<Args, Via, H>(self, pattern: &str, handler: H) -> Self
            where
                H: Signature<Args> + Handler<Args, Via> + Describe<Args> + 'static,
                (Args, Via): 'static,
            {
                self.on(Method::$METHOD, pattern, handler)
            }
        )*
    };
}

impl Api {
    methods! {
        get GET;
        post POST;
        put PUT;
        delete DELETE;
        patch PATCH;
        head HEAD;
        options OPTIONS;
    }

    /// Answers and describes requests for `pattern` in `method`.
    #[track_caller]
    #[must_use]
    pub fn on<Args, Via, H>(self, method: Method, pattern: &str, handler: H) -> Self
    where
        H: Signature<Args> + Handler<Args, Via> + Describe<Args> + 'static,
        (Args, Via): 'static,
    {
        Self(self.0.on(method, pattern, handler.described()))
    }

    /// The same with a prefix, within.
    #[track_caller]
    #[must_use]
    pub fn scope(self, prefix: &str, build: impl FnOnce(Self) -> Self) -> Self {
        Self(self.0.scope(prefix, describe(build)))
    }

    /// Adds the routes of a function, such as one of another file. What it says of routes that follow, and the middleware that it adds, stay
    /// within.
    ///
    /// ```
    /// # use peregrine::openapi::{Api, HasOpenApi, OpenApi, describe};
    /// # use peregrine::prelude::*;
    /// fn birds(api: Api) -> Api {
    ///     api.tag("birds").get("/birds", || "all of them")
    /// }
    /// fn eggs(api: Api) -> Api {
    ///     api.tag("eggs").get("/eggs", || "none")
    /// }
    ///
    /// let app = App::new().add(describe(|api| api.add(birds).add(eggs))).add(OpenApi::new("Birds", "1.0"));
    /// let document = app.openapi()?;
    /// assert_eq!(document.operation("GET", "/eggs").unwrap()["tags"], serde_json::json!(["eggs"]));
    /// # Ok::<(), peregrine::openapi::OpenApiError>(())
    /// ```
    #[expect(
        clippy::should_implement_trait,
        reason = "named as `App::add`, and nobody takes it for `+`"
    )]
    #[track_caller]
    #[must_use]
    pub fn add(self, build: impl FnOnce(Self) -> Self) -> Self {
        self.scope("", build)
    }

    /// Adds what needs no description, or has one of its own.
    #[must_use]
    pub fn plain(self, build: impl FnOnce(Scope) -> Scope) -> Self {
        Self(build(self.0))
    }

    /// Runs `middleware` around the routes that follow ([`Scope::with`]).
    #[track_caller]
    #[must_use]
    pub fn with<Args, M>(self, middleware: M) -> Self
    where
        M: IntoMiddleware<Args, Middleware: Middleware + 'static>,
    {
        Self(self.0.with(middleware))
    }

    /// Lets the routes that follow answer only what `guard` accepts ([`Scope::when`]).
    #[must_use]
    pub fn when(self, guard: impl Guard + 'static) -> Self {
        Self(self.0.when(guard))
    }

    /// Says something of all routes that follow here and in the scopes within, however they are added. What they say
    /// themselves counts more.
    #[must_use]
    pub fn for_all(
        self,
        edit: impl for<'a> Fn(&'a mut Operation) -> &'a mut Operation + 'static,
    ) -> Self {
        Self(self.0.noted(for_all(edit)))
    }

    /// Puts the routes that follow under a heading.
    #[must_use]
    pub fn tag(self, name: &str) -> Self {
        let name = name.to_owned();
        self.for_all(move |it| it.tag(&*name))
    }

    /// The routes that follow let in by this scheme alone, whatever was said around them.
    #[must_use]
    pub fn security(self, scheme: &str) -> Self {
        let scheme = scheme.to_owned();
        self.for_all(move |it| it.only_security(&scheme))
    }

    /// The routes that follow let in everybody.
    #[must_use]
    pub fn no_security(self) -> Self {
        self.for_all(Operation::no_security)
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Api").field(&self.0).finish()
    }
}
