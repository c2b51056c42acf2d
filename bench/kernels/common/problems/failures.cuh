// The cases that failed.
#pragma once
#include <cstdio>
#include <string>

namespace based::bench {

class Failures {
 public:
  void fail(const std::string& what) {
    ++failures_;
    std::printf("FAILED %s\n", what.c_str());
    std::fflush(stdout);
  }
  int failures() const { return failures_; }

 private:
  int failures_ = 0;
};

}  // namespace based::bench
