// SPDX-License-Identifier: MIT
// The root of every interface that crosses the plugin boundary, and the smart pointer that owns
// one.
#pragma once

#include "tenon/base.h"

namespace tenon {

/// Root of all plugin interfaces. Interfaces are immutable once released; new abilities are facets.
///
/// A destructor never crosses the boundary: objects end with `release()`.
class Object {
  public:
    /// The interface with this facet name ("compute.device/1"), or null. Borrowed; lives as long as
    /// the object. Derived interfaces return themselves for their own name.
    virtual void* query(StrView facet) noexcept = 0;
    /// Ends the object. Call exactly once, on the thread that the interface names.
    virtual void release() noexcept = 0;

  protected:
    ~Object() = default;
};

/// Finds an interface by its `kFacet` name; null if the object does not offer it.
template <class T>
T* facet_of(Object* object) noexcept {
    return object == nullptr ? nullptr : static_cast<T*>(object->query(T::kFacet));
}

/// Owns one object; releases it at the end.
template <class T>
class Ref {
  public:
    Ref() = default;
    explicit Ref(T* object) : object_(object) {}
    Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Ref& operator=(Ref&& other) noexcept {
        if (this != &other) {
            reset();
            object_ = std::exchange(other.object_, nullptr);
        }
        return *this;
    }
    Ref(const Ref&) = delete;
    Ref& operator=(const Ref&) = delete;
    ~Ref() { reset(); }

    T* get() const { return object_; }
    T* operator->() const { return object_; }
    T& operator*() const { return *object_; }
    explicit operator bool() const { return object_ != nullptr; }
    T* detach() { return std::exchange(object_, nullptr); }
    void reset(T* object = nullptr) {
        if (object_ != nullptr) {
            object_->release();
        }
        object_ = object;
    }
    /// For calls of the form `make(..., ref.out())`; the old object is released first.
    T** out() {
        reset();
        return &object_;
    }

  private:
    T* object_ = nullptr;
};

/// Implements `query` and `release` for a heap object that offers the facets of `Interfaces...`.
///
/// class Table final : public Implements<Table, RowTable> { … };   create with `new`
template <class Self, class... Interfaces>
class Implements : public Interfaces... {
  public:
    void* query(StrView facet) noexcept override {
        void* found = nullptr;
        ((found == nullptr && facet == StrView(Interfaces::kFacet)
              ? static_cast<void>(found = static_cast<Interfaces*>(static_cast<Self*>(this)))
              : static_cast<void>(0)),
         ...);
        return found;
    }
    void release() noexcept override { delete static_cast<Self*>(this); }

  protected:
    ~Implements() = default;
};

}  // namespace tenon
