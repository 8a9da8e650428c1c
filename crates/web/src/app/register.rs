//! Adds several routes in one call: functions that fill a scope, and handlers with an attribute.

use crate::app::scope::Scope;

/// A set of routes: a function that takes a [`Scope`] and returns it, a handler defined with an
/// attribute such as `#[get("/")]`, or a tuple of these.
///
/// ```
/// use peregrine::web::{App, Scope};
///
/// fn users(scope: Scope) -> Scope {
///     scope.get("/users", || "everybody")
/// }
/// fn birds(scope: Scope) -> Scope {
///     scope.get("/birds", || "all of them")
/// }
///
/// let client = App::new().register((users, birds)).test();
/// assert_eq!(client.get("/birds").send_blocking().text(), "all of them");
/// ```
#[doc(alias = "HttpServiceFactory")]
pub trait RegisterRoutes {
    /// Adds the routes to `scope`.
    #[doc(alias = "add_to")]
    fn register(self, scope: &mut Scope);
}

impl<F: FnOnce(Scope) -> Scope> RegisterRoutes for F {
    fn register(self, scope: &mut Scope) {
        scope.apply(self);
    }
}

macro_rules! tuples {
    ($(($($T:ident)*))*) => {
        $(
            #[allow(non_snake_case, reason = "each value is named as its type")]
            impl<$($T: RegisterRoutes),*> RegisterRoutes for ($($T,)*) {
                fn register(self, scope: &mut Scope) {
                    let ($($T,)*) = self;
                    $($T.register(scope);)*
                }
            }
        )*
    };
}

tuples! {
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
