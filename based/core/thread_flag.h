#pragma once

namespace based {

// A thread-local flag that is set while at least one object of the type exists on the thread. With `struct Foo : ThreadFlag<Foo> {};`,
// Foo::active() tells whether it is set.
template <class Tag>
class ThreadFlag {
 public:
  ThreadFlag() { ++living; }
  ~ThreadFlag() { --living; }
  ThreadFlag(const ThreadFlag&) = delete;
  ThreadFlag& operator=(const ThreadFlag&) = delete;
  static bool active() { return living > 0; }

 private:
  static inline thread_local int living = 0;
};

}  // namespace based
