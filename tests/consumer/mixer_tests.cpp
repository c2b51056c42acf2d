// The library's own conformance suite over a mixer of somebody else's, by Based::conformance.
#include <gtest/gtest.h>

#include "decayed_sum.h"

int main(int argc, char** argv) {
  based::register_mixer(mixer_info_decayed_sum());  // first: the suite's tests are made of what is registered when it starts
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
