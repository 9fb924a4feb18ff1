// Whether this process may use AMX.
#pragma once

namespace crossret {

// Whether the processor has tiles and products of bfloat16, and the kernel lets this process keep tiles: Linux wants to
// be asked, once, before it makes room for them. False on other processors and systems.
bool amx_permitted();

}  // namespace crossret
