// Whether this process may use AMX.
#pragma once

namespace crossret {

// Whether the processor has tiles and products of bfloat16 and Linux permits this process to use tiles, which it grants
// on request, once a process. False on other processors and systems.
bool amx_permitted();

}  // namespace crossret
