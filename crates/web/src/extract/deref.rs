//! Dereferences wrappers to their values: `bird.name` works where `bird` is a `Json<Bird>`.

#[cfg(feature = "typed-headers")]
use super::TypedHeader;
use super::{Extension, Form, Json, Path, Query, State};
use std::ops::{Deref, DerefMut};

macro_rules! impl_deref {
    ($($Wrapper:ident)*) => {
        $(
            impl<T> Deref for $Wrapper<T> {
                type Target = T;

                fn deref(&self) -> &T {
                    &self.0
                }
            }

            impl<T> DerefMut for $Wrapper<T> {
                fn deref_mut(&mut self) -> &mut T {
                    &mut self.0
                }
            }
        )*
    };
}

impl_deref! { Extension Form Json Path Query State }
#[cfg(feature = "typed-headers")]
impl_deref! { TypedHeader }

impl<T> From<T> for Json<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}
