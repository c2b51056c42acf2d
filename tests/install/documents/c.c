// docs/guides/c.md
#include <stdio.h>

#include "based/c/based.h"

int main(void) {
#include "docs/guides/c.md.1"
  return 0;
}
