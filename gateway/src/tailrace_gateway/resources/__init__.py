"""Resources from where they are kept (files now) to whole, checked states.

`manifest` (text → documents) → `documents` (documents → resources and findings) → `merging` (with the last good) → `state`.
`files` is the source that watches files, `secrets` and `keys` keep what must not stand in a resource. Only those three do IO.
"""
