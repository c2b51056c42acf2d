// README.md. The blocks are one program.
#include "README.md.1.h"

int main() {
#include "README.md.1"
#include "README.md.2"
}
