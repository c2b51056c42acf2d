#pragma once

namespace based {

// A flag of the thread that is up while at least one of these lives there: struct Foo : ThreadFlag<Foo> {}; then Foo::active().
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
