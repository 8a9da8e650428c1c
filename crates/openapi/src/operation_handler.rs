//! Handlers that describe themselves through their argument and return types.
//!
//! The type parameters `Args` and `Via` are markers that the compiler infers ([`Handler`]).

use crate::input::OperationInput;
use crate::operation::Operation;
use crate::output::OperationOutput;
use peregrine_web::extract::RouteRequirements;
use peregrine_web::handler::{
    Guarded, Handler, Named, RouteOptions, Signature, ViaFuture, ViaOptions, ViaValue,
    WithMetadata, WithOption,
};
use peregrine_web::{Request, Response};
use std::fmt;
use std::rc::Rc;

/// A change to the description of an operation.
pub(crate) type OperationEdit = dyn for<'a> Fn(&'a mut Operation) -> &'a mut Operation;

/// The metadata of a route that is described or hidden.
#[derive(Clone)]
pub struct OperationMetadata(pub(crate) MetadataKind);

#[derive(Clone)]
pub(crate) enum MetadataKind {
    /// Set on a scope, for all of its routes.
    Scope(Rc<OperationEdit>),
    /// Derived from the types of a handler.
    Inferred(fn(&mut Operation)),
    /// Added to a route explicitly.
    Explicit(Rc<OperationEdit>),
    /// Excludes the route from the document.
    Hidden,
}

impl fmt::Debug for OperationMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            MetadataKind::Scope(_) => "OperationMetadata(Scope)",
            MetadataKind::Inferred(_) => "OperationMetadata(Inferred)",
            MetadataKind::Explicit(_) => "OperationMetadata(Explicit)",
            MetadataKind::Hidden => "OperationMetadata(Hidden)",
        })
    }
}

/// Metadata for all routes of a scope, including those not added through
/// [`ApiScope`](crate::ApiScope): `.with_metadata(openapi::operation_defaults(|it|
/// it.tag("birds").security("token")))`. The descriptions of the routes themselves take precedence.
pub fn operation_defaults(
    edit: impl for<'a> Fn(&'a mut Operation) -> &'a mut Operation + 'static,
) -> OperationMetadata {
    OperationMetadata(MetadataKind::Scope(Rc::new(edit)))
}

/// Metadata that excludes routes from the document, so that they do not count as undescribed:
/// `.with_metadata(openapi::hidden())` on a scope or a handler.
#[must_use]
pub fn hidden() -> OperationMetadata {
    OperationMetadata(MetadataKind::Hidden)
}

/// A handler whose argument and return types describe themselves. `Args` is inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be described by its argument and return types",
    label = "not a self-describing handler",
    note = "each argument must implement `OperationInput`, and the return type `OperationOutput`; those of the framework do, if the types inside them derive `schemars::JsonSchema`",
    note = "a service or a handler that returns `impl IntoResponse` is described by `.described_manually(|it| ..)`"
)]
pub trait OperationHandler<Args>: Signature<Args> {
    /// Adds the description that follows from the types.
    fn describe(operation: &mut Operation);
}

/// Adds the description of a handler's route to the document.
///
/// ```
/// use peregrine::openapi::{DescribeExt, JsonSchema, OpenApi};
/// use peregrine::prelude::*;
///
/// #[derive(serde::Serialize, JsonSchema)]
/// struct Bird {
///     name: String,
/// }
///
/// async fn show(Path(id): Path<u32>) -> Json<Bird> {
///     Json(Bird { name: format!("bird {id}") })
/// }
///
/// let app = App::new().get("/birds/{id}", show.described());
/// let app = app.register(OpenApi::new("Birds", "1.0"));
/// let document = app.test().get("/openapi.json").send_blocking().json::<serde_json::Value>();
/// let parameter = &document["paths"]["/birds/{id}"]["get"]["parameters"][0];
/// assert_eq!(parameter["schema"]["format"], "uint32");
/// ```
pub trait DescribeExt<Args>: Signature<Args> + Sized {
    /// Describes the route by the handler's argument and return types.
    fn described(self) -> Described<Self>
    where
        Self: OperationHandler<Args>,
    {
        let metadata = vec![OperationMetadata(MetadataKind::Inferred(
            <Self as OperationHandler<Args>>::describe,
        ))];
        Described { handler: self, metadata: metadata.into() }
    }

    /// Like [`described`](Self::described), and then applies `edit`, whose changes take precedence.
    fn describe(
        self,
        edit: impl for<'a> Fn(&'a mut Operation) -> &'a mut Operation + 'static,
    ) -> Described<Self>
    where
        Self: OperationHandler<Args>,
    {
        let inferred =
            OperationMetadata(MetadataKind::Inferred(<Self as OperationHandler<Args>>::describe));
        Described {
            handler: self,
            metadata: [inferred, OperationMetadata(MetadataKind::Explicit(Rc::new(edit)))].into(),
        }
    }

    /// Describes the route only with `edit`: for services, and for handlers that return
    /// `impl IntoResponse`.
    fn described_manually(
        self,
        edit: impl for<'a> Fn(&'a mut Operation) -> &'a mut Operation + 'static,
    ) -> Described<Self> {
        Described {
            handler: self,
            metadata: [OperationMetadata(MetadataKind::Explicit(Rc::new(edit)))].into(),
        }
    }

    /// Excludes the route from the document.
    fn hidden(self) -> Described<Self> {
        Described { handler: self, metadata: [hidden()].into() }
    }
}

impl<Args, H: Signature<Args>> DescribeExt<Args> for H {}

/// A handler whose route is described, created by [`DescribeExt`].
#[derive(Clone, Debug)]
pub struct Described<H> {
    handler: H,
    metadata: Rc<[OperationMetadata]>,
}

impl<Args, H: Signature<Args>> Signature<ViaOptions<Args>> for Described<H> {}

impl<Args, Via, H: Handler<Args, Via>> Handler<ViaOptions<Args>, Via> for Described<H> {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        self.handler.call(request)
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        self.handler.require(requirements);
        for metadata in &*self.metadata {
            requirements.metadata(metadata.clone());
        }
    }

    fn configure(&self, options: &mut RouteOptions) {
        self.handler.configure(options);
    }
}

/// Adds nothing, because the handler already attaches its description to the route.
impl<Args, H: Signature<Args>> OperationHandler<ViaOptions<Args>> for Described<H> {
    fn describe(_: &mut Operation) {}
}

macro_rules! delegate_description {
    ($($Wrapper:ident)*) => {
        $(
            impl<Args, H: OperationHandler<Args>> OperationHandler<ViaOptions<Args>> for $Wrapper<H> {
                fn describe(operation: &mut Operation) {
                    H::describe(operation);
                }
            }
        )*
    };
}

delegate_description! { WithOption Guarded Named WithMetadata }

impl<F, R> OperationHandler<(ViaFuture,)> for F
where
    F: AsyncFn() -> R,
    R: OperationOutput,
{
    fn describe(operation: &mut Operation) {
        operation.output::<R>();
    }
}

impl<F, R> OperationHandler<(ViaValue,)> for F
where
    F: Fn() -> R,
    R: OperationOutput + peregrine_web::IntoResponse,
{
    fn describe(operation: &mut Operation) {
        operation.output::<R>();
    }
}

/// Implements [`OperationHandler`] for one number of arguments. `$bound` is a further bound on the
/// result of a handler that is not `async`.
macro_rules! handler {
    ($Marker:ident, $Fn:ident, [$($bound:tt)*], $($Argument:ident)*) => {
        impl<F, R, $($Argument,)*> OperationHandler<($Marker, $($Argument,)*)> for F
        where
            F: $Fn($($Argument,)*) -> R,
            R: OperationOutput $($bound)*,
            $($Argument: OperationInput,)*
        {
            fn describe(operation: &mut Operation) {
                $($Argument::describe(operation);)*
                operation.output::<R>();
            }
        }
    };
}

macro_rules! handlers {
    ($(($($Argument:ident)*))*) => {
        $(
            handler!(ViaFuture, AsyncFn, [], $($Argument)*);
            handler!(ViaValue, Fn, [+ peregrine_web::IntoResponse], $($Argument)*);
        )*
    };
}

handlers! {
    (A)
    (A B)
    (A B C)
    (A B C D)
    (A B C D E)
    (A B C D E G)
    (A B C D E G H)
    (A B C D E G H I)
    (A B C D E G H I J)
    (A B C D E G H I J K)
    (A B C D E G H I J K L)
    (A B C D E G H I J K L M)
}
