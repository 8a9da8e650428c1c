//! A macro that reports why a function is not a handler.

/// Checks at compile time that a function is a handler. If it is not, the error names the argument
/// or result that is wrong and says how to fix it.
///
/// Adding the function as a route reports the same error. This macro reports it beside the
/// function, and also works for functions that have no route yet. Pass one `_` for each argument:
///
/// ```
/// use peregrine::web::extract::{Json, Path};
///
/// async fn rename(Path(id): Path<u64>, Json(name): Json<String>) -> String {
///     format!("{id} is called {name}")
/// }
/// peregrine::check_handler!(async fn rename(_, _));
///
/// fn health() -> &'static str {
///     "ok"
/// }
/// peregrine::check_handler!(fn health());
/// ```
///
/// The check costs nothing at run time, so it can stay in the code.
#[macro_export]
macro_rules! check_handler {
    // The rules that begin with `@` name a type parameter for each `_`. The type parameter of the
    // last argument is kept separate, because only that argument may be a `FromRequest`, whose
    // parameter `Via` is an inferred marker. The rules that begin with `@@` emit the check.
    (async fn $handler:ident ( $($argument:tt),* $(,)? )) => {
        $crate::check_handler!(@ async $handler; ; A B C D E G H I J K L M; $($argument)*);
    };
    (fn $handler:ident ( $($argument:tt),* $(,)? )) => {
        $crate::check_handler!(@ plain $handler; ; A B C D E G H I J K L M; $($argument)*);
    };
    (@ $kind:ident $handler:ident; ; $($name:ident)*; ) => {
        $crate::check_handler!(@@ $kind $handler; ; );
    };
    (@ $kind:ident $handler:ident; $($part:ident)*; $last:ident $($name:ident)*; _) => {
        $crate::check_handler!(@@ $kind $handler; $($part)*; $last);
    };
    (@ $kind:ident $handler:ident; $($part:ident)*; $next:ident $($name:ident)*; _ $($more:tt)+) => {
        $crate::check_handler!(@ $kind $handler; $($part)* $next; $($name)*; $($more)+);
    };
    (@@ async $handler:ident; $($part:ident)*; $($last:ident)?) => {
        const _: fn() = || {
            fn check<Function, Returned, $($part,)* $($last, Via)?>(_: Function)
            where
                Function: ::core::ops::Fn($($part,)* $($last)?) -> Returned,
                Returned: ::core::future::Future,
                Returned::Output: $crate::IntoResponse,
                $($part: $crate::extract::FromRequestParts,)*
                $($last: $crate::extract::FromRequest<Via>,)?
            {
            }
            check($handler);
        };
    };
    (@@ plain $handler:ident; $($part:ident)*; $($last:ident)?) => {
        const _: fn() = || {
            fn check<Function, Returned, $($part,)* $($last, Via)?>(_: Function)
            where
                Function: ::core::ops::Fn($($part,)* $($last)?) -> Returned,
                Returned: $crate::IntoResponse,
                $($part: $crate::extract::FromRequestParts,)*
                $($last: $crate::extract::FromRequest<Via>,)?
            {
            }
            check($handler);
        };
    };
}
