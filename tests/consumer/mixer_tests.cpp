// Runs the library's conformance suite on the external program's mixer, with Based::conformance.
#include <gtest/gtest.h>

#include "decayed_sum.h"

int main(int argc, char** argv) {
  based::register_mixer(mixer_info_decayed_sum());  // before the suite's tests are instantiated from the registry
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
